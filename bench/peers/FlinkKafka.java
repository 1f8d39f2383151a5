import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The job of kafka_latency.py in Flink's DataStream API, in mini clusters of a process that runs as long as the
 * benchmark. It reads commands from stdin, <code>start source sink checkpoints</code> and <code>stop</code>, and
 * answers each with a line. Its arguments are the broker's address, the gap in ms, and the parallelism.
 */
public final class FlinkKafka {
    /** A key, and a time with a digit behind it, as in kafka_latency.py. */
    private static final TypeInformation<Tuple2<String, Long>> ROW =
            TypeInformation.of(new TypeHint<Tuple2<String, Long>>() {});

    private static final class Read implements KafkaRecordDeserializationSchema<Tuple2<String, Long>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> row, Collector<Tuple2<String, Long>> out) {
            out.collect(Tuple2.of(text(row.key()), Long.valueOf(text(row.value()))));
        }

        private static String text(byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }

        @Override
        public TypeInformation<Tuple2<String, Long>> getProducedType() {
            return ROW;
        }
    }

    private static final class Silent extends KeyedProcessFunction<String, Tuple2<String, Long>, Tuple2<String, Long>> {
        private final long gap;
        private transient ValueState<Long> due;

        Silent(long gap) {
            this.gap = gap;
        }

        @Override
        public void open(OpenContext context) {
            due = getRuntimeContext().getState(new ValueStateDescriptor<>("due", Types.LONG));
        }

        @Override
        public void processElement(Tuple2<String, Long> row, Context ctx, Collector<Tuple2<String, Long>> out)
                throws Exception {
            Long before = due.value();
            if (before != null) {
                ctx.timerService().deleteEventTimeTimer(before);
            }
            long timer = ctx.timestamp() + gap;
            ctx.timerService().registerEventTimeTimer(timer);
            due.update(timer);
            if (row.f1 % 10 == 0) {
                out.collect(Tuple2.of(row.f0, ctx.timestamp() * 10));
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext ctx, Collector<Tuple2<String, Long>> out) {
            due.clear();
            out.collect(Tuple2.of(ctx.getCurrentKey(), timestamp * 10 + 1));
        }
    }

    private static JobClient start(String[] arguments, String source, String sink, String checkpoints)
            throws Exception {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "10 s");
        settings.setString("execution.checkpointing.dir", "file://" + checkpoints);
        settings.setString("state.backend.type", "hashmap");
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(arguments[2]), settings);
        KafkaSource<Tuple2<String, Long>> rows =
                KafkaSource.<Tuple2<String, Long>>builder()
                        .setBootstrapServers(arguments[0])
                        .setTopics(source)
                        .setGroupId(source)
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setDeserializer(new Read())
                        .build();
        KafkaSink<Tuple2<String, Long>> results =
                KafkaSink.<Tuple2<String, Long>>builder()
                        .setBootstrapServers(arguments[0])
                        .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
                        .setRecordSerializer(
                                (KafkaRecordSerializationSchema<Tuple2<String, Long>>)
                                        (row, context, timestamp) ->
                                                new ProducerRecord<>(
                                                        sink,
                                                        row.f0.getBytes(StandardCharsets.UTF_8),
                                                        row.f1.toString().getBytes(StandardCharsets.UTF_8)))
                        .build();
        WatermarkStrategy<Tuple2<String, Long>> watermarks =
                WatermarkStrategy.<Tuple2<String, Long>>forMonotonousTimestamps()
                        .withTimestampAssigner((row, timestamp) -> row.f1 / 10);
        env.fromSource(rows, watermarks, "rows")
                .keyBy(row -> row.f0)
                .process(new Silent(Long.parseLong(arguments[1])))
                .returns(ROW)
                .sinkTo(results);
        return env.executeAsync();
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        JobClient job = null;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("start")) {
                job = start(arguments, words[1], words[2], words[3]);
            } else {
                job.cancel().get(60, TimeUnit.SECONDS);
            }
            System.out.println("done");
        }
    }
}
