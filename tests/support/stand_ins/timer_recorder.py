"""Records the timers that a timer service fires."""

from timerheap import TimeDomain


class Recorder:
    """Records each timer that fires, then calls `then`."""

    def __init__(self, then=lambda timer: None):
        self.fired = []
        self.then = then

    def on_event_time(self, timer):
        self.fired.append((TimeDomain.EVENT_TIME, timer))
        self.then(timer)

    def on_processing_time(self, timer):
        self.fired.append((TimeDomain.PROCESSING_TIME, timer))
        self.then(timer)

    def timestamps(self):
        return [timer.timestamp for _, timer in self.fired]


def held(service):
    """Return the timers and the watermark of a service."""
    timers = []

    def see(namespace, timestamp):
        timers.append((service.key_context.current_key, namespace, timestamp))

    current_key = service.key_context.current_key
    service.for_each_event_time_timer(see)
    timers.append("processing time")
    service.for_each_processing_time_timer(see)
    service.key_context.current_key = current_key
    return sorted(timers, key=repr), service.current_watermark()
