"""An operator with a manager of timer services, which logs what happens."""

from timerheap.flink import InternalTimeServiceManager, ManualProcessingTimeService


class Operator:
    """An operator whose services log the timers that fire and the watermarks emitted downstream."""

    def __init__(self, names, *, clock=None, then=lambda name, timer: None, **options):
        self.log = []
        self.then = then
        self.manager = InternalTimeServiceManager(
            clock or ManualProcessingTimeService(), emit_watermark=self.emit, **options
        )
        self.services = {name: self.get(name) for name in names}

    def get(self, name):
        return self.manager.get_internal_timer_service(name, Named(name, self))

    def emit(self, watermark):
        self.log.append(("downstream", watermark))

    def register(self, name, key, timestamp, namespace=None):
        self.manager.key_context.current_key = key
        self.services[name].register_event_time_timer(namespace, timestamp)


class Named:
    def __init__(self, name, operator):
        self.name = name
        self.operator = operator

    def on_event_time(self, timer):
        self.operator.log.append((self.name, timer.key, timer.timestamp))
        self.operator.then(self.name, timer)

    on_processing_time = on_event_time
