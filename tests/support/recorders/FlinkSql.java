import java.nio.file.*; import java.util.*;
import org.apache.flink.configuration.*;
import org.apache.flink.table.api.*;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/** Runs the statements of a file, separated by lines with ";", in streaming or batch mode; prints rows. */
public class FlinkSql {
  private static String json(Row row) {
    List<String> fields = new ArrayList<>();
    for (int i = 0; i < row.getArity(); i++) {
      Object value = row.getField(i);
      if (value instanceof java.time.Instant) value = ((java.time.Instant) value).toEpochMilli();
      if (value instanceof java.time.LocalDateTime) value = ((java.time.LocalDateTime) value).toInstant(java.time.ZoneOffset.UTC).toEpochMilli();
      fields.add(value instanceof String ? "\"" + value + "\"" : String.valueOf(value));
    }
    return (row.getKind() == org.apache.flink.types.RowKind.INSERT ? "" : "!! " + row.getKind()) + fields;
  }

  public static void main(String[] args) throws Exception {
    EnvironmentSettings.Builder b = EnvironmentSettings.newInstance();
    EnvironmentSettings settings = (args[0].equals("batch") ? b.inBatchMode() : b.inStreamingMode()).build();
    TableEnvironment env = TableEnvironment.create(settings);
    env.getConfig().set("table.local-time-zone", "UTC");
    env.getConfig().set("parallelism.default", "1");
    for (String s : Files.readString(Path.of(args[1])).split("\n;\n")) {
      s = s.strip(); if (s.isEmpty()) continue;
      String name = ""; if (s.startsWith("--")) { int n = s.indexOf('\n'); name = s.substring(2, n).strip(); s = s.substring(n + 1); }
      try {
        TableResult result = env.executeSql(s);
        if (!s.startsWith("SELECT") && !s.startsWith("WITH")) continue;
        System.out.println("== " + name);
        try (CloseableIterator<Row> rows = result.collect()) { while (rows.hasNext()) System.out.println(json(rows.next())); }
      } catch (Throwable e) { Throwable c = e; while (c.getCause() != null) c = c.getCause(); System.out.println("== " + name + "\n!! " + c.getClass().getSimpleName() + ": " + c.getMessage()); }
    }
    System.exit(0);
  }
}
