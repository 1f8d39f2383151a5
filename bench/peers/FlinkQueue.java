import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSet;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSetFactory;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;

/**
 * Flink's timer queue, created as in its heap state back end, in a process that runs as long as the benchmark. It
 * reads one command per line from stdin and writes a number to stdout; flink.py is the client.
 *
 * <p>As in Flink, registering or deleting a timer creates an object for it, which is included in the measurement.
 */
public final class FlinkQueue {
    private static final int KEY_GROUPS = 128, CAPACITY = 128; // Flink's defaults

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private static final class Queue {
        final HeapPriorityQueueSet<TimerHeapInternalTimer<Long, VoidNamespace>> timers =
                new HeapPriorityQueueSetFactory(KeyGroupRange.of(0, KEY_GROUPS - 1), KEY_GROUPS, CAPACITY)
                        .create("timers", null);
    }

    /** Timers in two orders: that of pushes, and that of removals and moves. */
    private final long[] times, moved, chosenTimes;

    private final Long[] keys, chosenKeys;

    private FlinkQueue(Path file, int n) throws IOException {
        try (FileChannel channel = FileChannel.open(file)) {
            LongBuffer columns =
                    channel.map(FileChannel.MapMode.READ_ONLY, 0, 5L * 8 * n)
                            .order(ByteOrder.LITTLE_ENDIAN)
                            .asLongBuffer();
            times = column(columns, n);
            keys = boxed(column(columns, n));
            chosenTimes = column(columns, n);
            moved = column(columns, n);
            chosenKeys = boxed(column(columns, n));
        }
    }

    private static long[] column(LongBuffer columns, int n) {
        long[] column = new long[n];
        columns.get(column);
        return column;
    }

    private static Long[] boxed(long[] column) {
        Long[] boxes = new Long[column.length];
        for (int i = 0; i < boxes.length; i++) boxes[i] = column[i];
        return boxes;
    }

    private static TimerHeapInternalTimer<Long, VoidNamespace> timer(long timestamp, Long key) {
        return new TimerHeapInternalTimer<>(timestamp, key, VoidNamespace.INSTANCE);
    }

    private void add(Queue queue) {
        for (int i = 0; i < times.length; i++) queue.timers.add(timer(times[i], keys[i]));
    }

    private void remove(Queue queue) {
        for (int i = 0; i < times.length; i++) queue.timers.remove(timer(chosenTimes[i], chosenKeys[i]));
    }

    private void move(Queue queue) {
        for (int i = 0; i < times.length; i++) {
            queue.timers.remove(timer(chosenTimes[i], chosenKeys[i]));
            queue.timers.add(timer(moved[i], chosenKeys[i]));
        }
    }

    private void poll(Queue queue, long most) {
        for (long i = 0; i < most; i++) queue.timers.poll();
    }

    /** Pops due timers like InternalTimerServiceImpl.advanceWatermark. */
    private void drain(Queue queue, long watermark) {
        TimerHeapInternalTimer<Long, VoidNamespace> timer;
        while ((timer = queue.timers.peek()) != null && timer.getTimestamp() <= watermark) queue.timers.poll();
    }

    private void run(String operation, Queue queue, long argument) {
        switch (operation) {
            case "add" -> add(queue);
            case "remove" -> remove(queue);
            case "move" -> move(queue);
            case "poll" -> poll(queue, argument);
            case "drain" -> drain(queue, argument);
            default -> throw new IllegalArgumentException(operation);
        }
    }

    /** Returns the nanoseconds of processor time of this thread for `copies` runs, each on a new queue. */
    private long measure(String operation, int copies, long argument) {
        long spent = 0;
        System.gc();
        for (int copy = 0; copy < copies; copy++) {
            Queue queue = new Queue();
            if (!operation.equals("add")) add(queue);
            long start = THREADS.getCurrentThreadCpuTime();
            run(operation, queue, argument);
            spent += THREADS.getCurrentThreadCpuTime() - start;
            check(operation, queue, argument);
        }
        return spent;
    }

    /** Checks the number of timers that remain. */
    private void check(String operation, Queue queue, long argument) {
        var first = queue.timers.peek();
        boolean right =
                switch (operation) {
                    case "remove" -> first == null;
                    case "poll" -> queue.timers.size() == times.length - argument;
                    case "drain" -> first == null || first.getTimestamp() > argument;
                    default -> queue.timers.size() == times.length;
                };
        if (!right) throw new IllegalStateException(operation + " has left " + queue.timers.size() + " timers");
    }

    /** Returns the cost of reading the clock ten thousand times. */
    private static long clock() {
        long start = THREADS.getCurrentThreadCpuTime();
        for (int i = 0; i < 10_000; i++) THREADS.getCurrentThreadCpuTime();
        return THREADS.getCurrentThreadCpuTime() - start;
    }

    /** Returns the bytes of `copies` queues with their timers, each with a Long as its key. */
    private long bytes(int copies) {
        Queue[] queues = new Queue[copies];
        long before = used();
        for (int copy = 0; copy < copies; copy++) {
            queues[copy] = new Queue();
            for (int i = 0; i < times.length; i++) {
                queues[copy].timers.add(timer(times[i], Long.valueOf(keys[i].longValue())));
            }
        }
        long bytes = used() - before;
        for (Queue queue : queues)
            if (queue.timers.size() != times.length) throw new IllegalStateException(queue.timers.size() + " timers");
        return bytes;
    }

    private static long used() {
        for (int i = 0; i < 4; i++) System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        FlinkQueue bench = null;
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\t");
            long answer =
                    switch (words[0]) {
                        case "load" -> {
                            bench = new FlinkQueue(Path.of(words[1]), Integer.parseInt(words[2]));
                            yield bench.times.length;
                        }
                        case "bytes" -> bench.bytes(Integer.parseInt(words[1]));
                        case "clock" -> clock();
                        default -> bench.measure(words[0], Integer.parseInt(words[1]), Long.parseLong(words[2]));
                    };
            System.out.println(answer);
        }
    }
}
