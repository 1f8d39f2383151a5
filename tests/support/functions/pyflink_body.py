"""A KeyedProcessFunction as one writes it for PyFlink; only the import below is timerheap's.

`record_pyflink.py` puts PyFlink's imports in its place and records what PyFlink answers;
`test_pyflink_body.py` runs it as it stands. It watches couriers: a trip ends 20 minutes after its last stop,
or when the courier signs off; an hour with stops is counted at its end; a courier who stays away is called
after 45, 90 and 135 minutes.

What it yields depends on the rows alone, not on the moment at which watermarks come between them: whatever a
timer needs is kept until that timer fires, however many later rows were there first. What timers yield is
numbered per key, so that timers which fire in the wrong order, twice or not at all give other rows.
"""

from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
GAP = 20 * MINUTE
ABSENCE = 45 * MINUTE
CALLS = 3


class CourierWatch(KeyedProcessFunction):
    """k, at, event, stop, via, parcels, weight -> kind, k, at, number, parcels, weight, detail, in_time."""

    def open(self, runtime_context: RuntimeContext):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self.weight = runtime_context.get_state(ValueStateDescriptor("weight", Types.DOUBLE()))
        self.answers = runtime_context.get_state(ValueStateDescriptor("answers", Types.INT()))
        self.route = runtime_context.get_list_state(ListStateDescriptor("route", Types.STRING()))
        self.starts = runtime_context.get_list_state(ListStateDescriptor("starts", Types.LONG()))
        self.parcels = runtime_context.get_map_state(
            MapStateDescriptor("parcels", Types.STRING(), Types.LONG())
        )
        self.hours = runtime_context.get_map_state(MapStateDescriptor("hours", Types.LONG(), Types.LONG()))
        self.calls = runtime_context.get_map_state(MapStateDescriptor("calls", Types.LONG(), Types.INT()))
        trip = Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.STRING()])
        self.parked = runtime_context.get_map_state(MapStateDescriptor("parked", Types.LONG(), trip))

    def process_element(self, value, ctx: KeyedProcessFunction.Context):
        now, key, timers = ctx.timestamp(), ctx.get_current_key(), ctx.timer_service()
        if now <= timers.current_watermark():
            yield "late", key, now, 0, 0, 0.0, value["stop"], False
            return

        last = self.last.value()
        if last is not None and now > last + GAP:  # that trip is over, but its timer has not fired yet
            self.parked.put(last + GAP, self._take_trip())
            last = None
        if last is None:
            yield "start", key, now, 0, 0, 0.0, value["stop"], True
            self.starts.add(now)
            for due in list(self.calls.keys()):
                if due >= now:
                    self.calls.remove(due)
                    self._delete(timers, due)
        else:
            self._delete(timers, last + GAP)

        if value.event == "sign_off":
            parcels, weight, route = self._take_trip()
            yield "signed_off", key, now, 0, parcels, weight, route, True
            self._call_later(timers, now, 1)
            return

        self.last.update(now)
        timers.register_event_time_timer(now + GAP)
        self._drive(value)
        hour = now - now % HOUR + HOUR
        self.hours[hour] = (self.hours[hour] or 0) + 1
        timers.register_event_time_timer(hour)  # once for each stop of the hour, and yet it fires once

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        key, timers = ctx.get_current_key(), ctx.timer_service()
        in_time = (
            ctx.time_domain() == TimeDomain.EVENT_TIME
            and ctx.timestamp() == timestamp
            and timers.current_watermark() >= timestamp
        )
        trip = self.parked.get(timestamp)
        last = self.last.value()
        if trip is not None:
            self.parked.remove(timestamp)
        elif last is not None and last + GAP == timestamp:
            trip = self._take_trip()
        stops, call = self.hours.get(timestamp), self.calls.get(timestamp)
        if trip is None and stops is None and call is None:  # a timer that was deleted, or that fires again
            yield "needless", key, timestamp, self._number(), 0, 0.0, "", in_time

        if trip is not None:
            parcels, weight, route = trip
            yield (
                "trip",
                key,
                timestamp,
                self._number(),
                parcels,
                weight,
                route,
                in_time,
            )
            self._call_later(timers, timestamp, 1)
            self.starts.update([start for start in self.starts if start > timestamp - CALLS * ABSENCE])
        if stops is not None:
            yield "hour", key, timestamp, self._number(), stops, 0.0, "", in_time
            self.hours.remove(timestamp)
        if call is not None:
            del self.calls[timestamp]
            left = timestamp - call * ABSENCE
            if not any(left < start <= timestamp for start in self.starts.get()):
                yield "call", key, timestamp, self._number(), call, 0.0, "", in_time
                if call < CALLS:
                    self._call_later(timers, left, call + 1)

    def _drive(self, value):
        stop = value["stop"]
        if value["event"] == "skip":
            self.parcels.remove(stop)
            self.route.update([place for place in self.route.get() if place != stop])
            return
        if value["via"] is None:
            self.route.add(stop)
        else:
            self.route.add_all([value["via"], stop])
        known = self.parcels.get(stop) if self.parcels.contains(stop) else 0
        self.parcels.put(stop, known + value.parcels)
        self.weight.update((self.weight.value() or 0.0) + value[6])

    def _take_trip(self):
        route = ">".join(self.route.get())
        if not self.parcels.is_empty():
            most = max(self.parcels.values())
            route += " most at " + ",".join(sorted(stop for stop, n in self.parcels.items() if n == most))
        trip = (
            sum(n for _, n in self.parcels.items()),
            self.weight.value() or 0.0,
            route,
        )
        for state in (self.last, self.weight, self.route, self.parcels):
            state.clear()
        return trip

    def _call_later(self, timers, left, call):
        self.calls.put(left + call * ABSENCE, call)
        timers.register_event_time_timer(left + call * ABSENCE)

    def _delete(self, timers, timestamp):
        if timestamp not in self.hours:  # one timer a timestamp: on the hour, the hour's count needs it too
            timers.delete_event_time_timer(timestamp)

    def _number(self):
        number = (self.answers.value() or 0) + 1
        self.answers.update(number)
        return number
