import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;
import java.time.Duration;

/** Two patterns of patterns.py, written by hand in Flink's DataStream API; rows come in the order of time. */
public final class FlinkPatterns {
    private static final long HOUR = 3_600_000L;

    /** A row: key, ms, amount, kind. Of a result the amount is that of the last row. */
    private static final TypeInformation<Tuple4<Long, Long, Double, Integer>> ROW =
            Types.TUPLE(Types.LONG, Types.LONG, Types.DOUBLE, Types.INT);

    private abstract static class Found<S>
            extends KeyedProcessFunction<Long, Tuple4<Long, Long, Double, Integer>, Tuple4<Long, Long, Double, Integer>> {
        private final TypeInformation<S> type;
        private final LongCounter matches = new LongCounter();
        protected transient ValueState<S> state;

        Found(TypeInformation<S> type) {
            this.type = type;
        }

        @Override
        public void open(OpenContext context) {
            state = getRuntimeContext().getState(new ValueStateDescriptor<>("state", type));
            getRuntimeContext().addAccumulator("matches", matches);
        }

        protected void emit(long key, long began, double ended, Collector<Tuple4<Long, Long, Double, Integer>> out) {
            matches.add(1);
            state.clear();
            out.collect(Tuple4.of(key, began, ended, 0));
        }
    }

    /** Three rising amounts and one below the first of them, within an hour: the times and amounts of three rows. */
    private static final class Fraud extends Found<double[]> {
        Fraud() {
            super(TypeInformation.of(double[].class));
        }

        @Override
        public void processElement(
                Tuple4<Long, Long, Double, Integer> row, Context ctx, Collector<Tuple4<Long, Long, Double, Integer>> out)
                throws Exception {
            double[] last = state.value();
            int known = last == null ? 0 : last.length;
            if (known == 6 && last[3] > last[1] && last[5] > last[3] && row.f2 < last[1] && row.f1 - last[0] < HOUR) {
                emit(row.f0, (long) last[0], row.f2, out);
                return;
            }
            int kept = Math.min(known, 4);
            double[] rows = new double[kept + 2];
            if (kept > 0) {
                System.arraycopy(last, known - kept, rows, 0, kept);
            }
            rows[kept] = row.f1;
            rows[kept + 1] = row.f2;
            state.update(rows);
        }
    }

    /** An A, until a B comes or ten minutes have passed. */
    private static final class Silence extends Found<Long> {
        Silence() {
            super(Types.LONG);
        }

        @Override
        public void processElement(
                Tuple4<Long, Long, Double, Integer> row, Context ctx, Collector<Tuple4<Long, Long, Double, Integer>> out)
                throws Exception {
            Long began = state.value();
            if (began != null && (row.f3 == 1 || row.f1 >= began + HOUR / 6)) {
                ctx.timerService().deleteEventTimeTimer(began + HOUR / 6 - 1);
                emit(row.f0, began, 0, out);
                began = null;
            }
            if (began == null && row.f3 == 0) {
                state.update(row.f1);
                ctx.timerService().registerEventTimeTimer(row.f1 + HOUR / 6 - 1);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext ctx, Collector<Tuple4<Long, Long, Double, Integer>> out)
                throws Exception {
            emit(ctx.getCurrentKey(), state.value(), 0, out);
        }
    }

    private static Tuple4<Long, Long, Double, Integer> parsed(String line) {
        String[] parts = line.split(",");
        return Tuple4.of(
                Long.valueOf(parts[0]), Long.valueOf(parts[1]), Double.valueOf(parts[2]), Integer.valueOf(parts[3]));
    }

    /** Find a pattern in a file of CSV; return the ms that it took, and the matches. */
    public static long[] run(String file, String pattern) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(2);
        env.getConfig().enableObjectReuse();
        WatermarkStrategy<Tuple4<Long, Long, Double, Integer>> watermarks =
                WatermarkStrategy.<Tuple4<Long, Long, Double, Integer>>forBoundedOutOfOrderness(Duration.ofSeconds(1))
                        .withTimestampAssigner((row, timestamp) -> row.f1);
        env.fromSource(
                        FileSource.forRecordStreamFormat(new TextLineInputFormat(), new Path(file)).build(),
                        WatermarkStrategy.noWatermarks(),
                        "lines")
                .map(FlinkPatterns::parsed)
                .returns(ROW)
                .assignTimestampsAndWatermarks(watermarks)
                .keyBy(row -> row.f0)
                .process(pattern.equals("fraud") ? new Fraud() : new Silence())
                .returns(ROW)
                .sinkTo(new DiscardingSink<>());
        var result = env.execute();
        return new long[] {result.getNetRuntime(), result.getAccumulatorResult("matches")};
    }
}
