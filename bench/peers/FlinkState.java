import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.util.Collector;

/**
 * The job of capacity.py in Flink's DataStream API, with its state in RocksDB and incremental checkpoints. It reads
 * commands from stdin, and answers each with a line. Its arguments are the folder of the checkpoints, that of RocksDB,
 * the bytes of managed memory, and the checkpoint to start from or nothing.
 */
public final class FlinkState {
    private static final int PARALLELISM = 2;

    private static final long SPAN = 60_000, DAY = 86_400_000; // ms, as in capacity.py

    private static final TypeInformation<Tuple3<String, Long, Double>> ROW =
            TypeInformation.of(new TypeHint<Tuple3<String, Long, Double>>() {});

    /** Rows to be made, by the numbers of their keys, for each source; the mini cluster is in this process. */
    private static final class Piece {
        final long[] keys;
        final long at;

        Piece(long[] keys, long at) {
            this.keys = keys;
            this.at = at;
        }
    }

    private static final BlockingQueue<Piece>[] PIECES = queues();

    private static final AtomicLong PROCESSED = new AtomicLong();

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static BlockingQueue<Piece>[] queues() {
        BlockingQueue[] queues = new BlockingQueue[PARALLELISM];
        for (int i = 0; i < PARALLELISM; i++) queues[i] = new LinkedBlockingQueue<Piece>();
        return queues;
    }

    private static final class Rows extends RichParallelSourceFunction<Tuple3<String, Long, Double>> {
        private volatile boolean running = true;

        @Override
        public void run(SourceContext<Tuple3<String, Long, Double>> context) throws InterruptedException {
            int number = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            while (running) {
                Piece piece = PIECES[number].take(); // without the lock, so that checkpoints go on
                Random random = new Random(piece.at + number);
                for (long key : piece.keys) {
                    long at = piece.at + random.nextInt((int) SPAN);
                    double reading = Math.round(random.nextDouble(1, 60) * 100) / 100.0;
                    synchronized (context.getCheckpointLock()) {
                        context.collectWithTimestamp(Tuple3.of(String.format("unit-%08d", key), at, reading), at);
                    }
                }
            }
        }

        @Override
        public void cancel() {
            running = false;
        }
    }

    /** A timer that each row of a key moves, and the last reading. Flink's timers do not move: a state has its time. */
    private static final class Devices
            extends KeyedProcessFunction<String, Tuple3<String, Long, Double>, Tuple3<String, Long, Double>> {
        private transient ValueState<Long> due;
        private transient ValueState<Double> last;

        @Override
        public void open(OpenContext context) {
            due = getRuntimeContext().getState(new ValueStateDescriptor<>("due", Types.LONG));
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.DOUBLE));
        }

        @Override
        public void processElement(
                Tuple3<String, Long, Double> row, Context ctx, Collector<Tuple3<String, Long, Double>> out)
                throws Exception {
            Long before = due.value();
            if (before != null) ctx.timerService().deleteEventTimeTimer(before);
            long timer = row.f1 + 30 * DAY;
            ctx.timerService().registerEventTimeTimer(timer);
            due.update(timer);
            last.update(row.f2);
            PROCESSED.incrementAndGet();
        }
    }

    private final MiniCluster cluster;

    private final JobID job;

    private long batches = 0;

    private FlinkState(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "10 h"); // they are triggered
        settings.setString("execution.checkpointing.dir", "file://" + arguments[0]);
        settings.setString("execution.checkpointing.incremental", "true");
        settings.setString(
                "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("execution.buffer-timeout.interval", "1 ms");
        settings.setString("state.backend.type", "rocksdb");
        settings.setString("state.backend.rocksdb.localdir", arguments[1]);
        settings.setString("taskmanager.memory.managed.size", arguments[2] + "b");
        settings.setString("rest.port", "0");
        if (arguments.length > 3) settings.setString("execution.state-recovery.path", arguments[3]);
        cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(settings)
                                .setNumSlotsPerTaskManager(PARALLELISM)
                                .withRandomPorts()
                                .build());
        cluster.start();
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, settings);
        env.addSource(new Rows(), ROW)
                .uid("rows")
                .keyBy(row -> row.f0)
                .process(new Devices())
                .returns(ROW)
                .uid("devices")
                .sinkTo(new DiscardingSink<>())
                .uid("nothing");
        job = cluster.submitJob(env.getStreamGraph().getJobGraph()).get().getJobID();
        while (cluster.getJobStatus(job).get() != JobStatus.RUNNING) Thread.sleep(50);
    }

    /** Processes rows of these keys; returns the seconds. */
    private double process(long[] keys) throws InterruptedException {
        long begun = System.nanoTime(), wanted = PROCESSED.get() + keys.length;
        for (int number = 0; number < PARALLELISM; number++) {
            int first = keys.length * number / PARALLELISM, end = keys.length * (number + 1) / PARALLELISM;
            PIECES[number].add(new Piece(LongStream.of(keys).skip(first).limit(end - first).toArray(), batches * SPAN));
        }
        batches++;
        while (PROCESSED.get() < wanted) Thread.sleep(1);
        return (System.nanoTime() - begun) / 1e9;
    }

    private double checkpoint() throws Exception {
        long begun = System.nanoTime();
        cluster.triggerCheckpoint(job, CheckpointType.CONFIGURED).get();
        return (System.nanoTime() - begun) / 1e9;
    }

    private static long[] chosen(long keys, int n, long seed) {
        return new Random(seed).longs(0, keys).distinct().limit(n).toArray();
    }

    private String answer(String[] words) throws Exception {
        long keys = Long.parseLong(words[1]), begun = System.nanoTime();
        switch (words[0]) {
            case "build": // keys, keys of a piece
                for (long first = 0, step = Long.parseLong(words[2]); first < keys; first += step)
                    process(LongStream.range(first, Math.min(first + step, keys)).toArray());
                return (System.nanoTime() - begun) / 1e9 + " " + checkpoint();
            case "continue": // the number of pieces before
                batches = keys;
                process(new long[PARALLELISM]); // of one key, so that all tasks run
                return "" + checkpoint();
            case "cold": // keys, rows, seed
                long[] cold = chosen(keys, Integer.parseInt(words[2]), Long.parseLong(words[3]));
                return process(cold) + " " + checkpoint();
            case "hot": // keys, rows, seed, keys of which one is hot
                long[] hot = chosen(keys, (int) (keys / Long.parseLong(words[4])), 1);
                long[] some = chosen(hot.length, Integer.parseInt(words[2]), Long.parseLong(words[3]));
                return process(LongStream.of(some).map(at -> hot[(int) at]).toArray()) + " " + checkpoint();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler(
                (thread, failure) -> {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                });
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("=");
        FlinkState state = null;
        for (String line; (line = commands.readLine()) != null; ) {
            if (state == null) state = new FlinkState(arguments);
            System.out.println("= " + state.answer(line.split(" ")));
        }
        if (state != null) state.cluster.cancelJob(state.job).get();
        System.exit(0);
    }
}
