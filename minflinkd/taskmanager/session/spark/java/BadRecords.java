package org.minflinkd;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.BufferedOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF3;
import org.apache.spark.sql.catalyst.expressions.csv.CsvToStructsEvaluator;
import org.apache.spark.sql.catalyst.expressions.json.JsonToStructsEvaluator;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Takes the bad rows of a vertex out of a micro-batch, as a filter that is asked about bad rows only.
 *
 * Each Spark task writes the bad rows that it meets to a file of its own, and the file gets its final name when the task
 * succeeds. A task that is tried again replaces the file. So the files have each row once. They are in a directory of
 * the micro-batch, which properties of its Spark jobs tell: Spark may run some before it calls the sinks.
 */
public final class BadRecords implements UDF3 {
  private static final String DIRECTORY = "minflinkd.bad-records"; // of the query: a property of its Spark jobs
  private static final String BATCH = "streaming.sql.batchId"; // Spark's own

  private static final int EXAMPLES = 3; // rows that are kept of a task if rows are dropped, to show them
  private static final int LONGEST = 500; // characters of a record, and of what is wrong with it, in an error
  private static final String UNFIT = "it does not fit the source's schema";
  private static final Map OPEN = new ConcurrentHashMap(); // task attempt and vertex -> Output

  private final String vertex;
  private final String action;
  private final Object parser;

  /**
   * Action: `fail`, `drop` or `keep`. Parser: of a source, reads a record again to say what is wrong with it; or null.
   */
  private BadRecords(String vertex, String action, Object parser) {
    this.vertex = vertex;
    this.action = action;
    this.parser = parser;
  }

  /** Returns the filter of a vertex, as a function of columns that Spark neither moves nor repeats. */
  public static UserDefinedFunction filter(String vertex, String action, Object parser) {
    UDF3 filter = new BadRecords(vertex, action, parser); // of several methods, py4j may choose the one for any object
    return functions.udf(filter, DataTypes.BooleanType).asNondeterministic().withName("bad_records");
  }

  /** Record: as text. Source: the file that it is from, or null. Returns false. */
  public Object call(Object error, Object record, Object source) throws Exception {
    String why = parser == null ? (String) error : explained((String) record);
    if (action.equals("fail")) throw new Found(vertex, why, (String) record, (String) source);
    output().add(why, (String) record, (String) source);
    return Boolean.FALSE;
  }

  /** The output of the Spark task that runs on this thread. */
  private Output output() throws IOException {
    TaskContext context = TaskContext.get();
    String directory = context == null ? null : context.getLocalProperty(DIRECTORY);
    String batch = context == null ? null : context.getLocalProperty(BATCH);
    if (directory == null || batch == null) { // rather than lose the record
      throw new IllegalStateException("a bad record of " + vertex + " was found outside of a micro-batch");
    }
    String key = context.taskAttemptId() + "/" + vertex;
    Output output = (Output) OPEN.get(key);
    if (output == null) {
      String[] below = new String[] {batch, vertex};
      Path place = FileSystems.getDefault().getPath(directory, below);
      output = new Output(key, vertex, place, context, action.equals("keep") ? Long.MAX_VALUE : EXAMPLES);
      OPEN.put(key, output);
      context.addTaskCompletionListener((TaskCompletionListener) output);
    }
    return output;
  }

  /** Spark only says that a record is bad. In its strict mode the parser says why. */
  private String explained(String record) {
    UTF8String text = UTF8String.fromString(record);
    try {
      if (parser instanceof JsonToStructsEvaluator) ((JsonToStructsEvaluator) parser).evaluate(text);
      else ((CsvToStructsEvaluator) parser).evaluate(text);
    } catch (Exception error) {
      Throwable cause = error;
      while (cause.getCause() != null) cause = cause.getCause();
      return said(cause.getMessage());
    }
    return UNFIT;
  }

  /** Of what Spark's parsers say, only what is wrong: not the mode, how Spark would tolerate it, and codes. */
  private static String said(String message) {
    if (message == null || message.startsWith("requirement failed")) return UNFIT;
    int advice = message.indexOf("'PERMISSIVE'. ");
    String text = advice < 0 ? message : message.substring(advice + 14);
    text = text.split("\n")[0].replaceFirst("^\\[[A-Z_.]+\\] ", "").replaceFirst(" SQLSTATE: \\w+$", "");
    text = text.split(" Correct the value as per")[0].split(" \\(start marker at")[0];
    if (text.endsWith(".")) text = text.substring(0, text.length() - 1);
    int half = LONGEST / 2; // the value stands in between, and may be as long as the record
    int length = text.length();
    return length > LONGEST ? text.substring(0, half) + " ... " + text.substring(length - half) : text;
  }

  /** The file of one Spark task. */
  private static final class Output implements TaskCompletionListener {
    private final String key;
    private final String vertex;
    private final Path draft;
    private final Path directory;
    private final int partition;
    private final long most;
    private final JsonGenerator rows;
    private long count;

    Output(String key, String vertex, Path directory, TaskContext context, long most) throws IOException {
      this.key = key;
      this.vertex = vertex;
      this.most = most;
      this.partition = context.partitionId();
      this.directory = directory;
      Files.createDirectories(directory, new java.nio.file.attribute.FileAttribute[0]);
      this.draft = this.directory.resolve("." + partition + "-" + context.taskAttemptId());
      this.rows =
          new JsonFactory()
              .createGenerator(
                  new BufferedOutputStream(Files.newOutputStream(draft, new java.nio.file.OpenOption[0])));
      this.rows.setRootValueSeparator(new com.fasterxml.jackson.core.io.SerializedString("\n"));
    }

    void add(String error, String record, String source) throws IOException {
      count++;
      if (count > most) return;
      rows.writeStartObject();
      rows.writeStringField("vertex", vertex);
      rows.writeStringField("error", error);
      rows.writeStringField("record", record);
      rows.writeStringField("source", source);
      rows.writeEndObject();
    }

    public void onTaskCompletion(TaskContext context) {
      OPEN.remove(key);
      try {
        rows.close();
        if (context.isFailed() || context.isInterrupted()) {
          Files.deleteIfExists(draft);
          return;
        }
        File[] before = directory.toFile().listFiles();
        for (int i = 0; before != null && i < before.length; i++) { // of an earlier try of this task
          if (before[i].getName().startsWith(partition + "-")) before[i].delete();
        }
        StandardCopyOption[] atomically = new StandardCopyOption[] {StandardCopyOption.ATOMIC_MOVE};
        Files.move(draft, directory.resolve(partition + "-" + count + ".json"), atomically);
      } catch (IOException error) {
        throw new RuntimeException("bad records of " + vertex + " cannot be kept: " + error, error);
      }
    }
  }

  private static String inOneLine(String text) {
    return (text.length() > LONGEST ? text.substring(0, LONGEST) + "..." : text).replace('\n', ' ');
  }

  /** A vertex has met a bad record, and is to fail then. */
  public static final class Found extends RuntimeException {
    Found(String vertex, String error, String record, String source) {
      super(
          "[BAD_RECORD] " // the session child looks for it
              + vertex
              + (source == null ? " rejects a record: " : " cannot parse a record of " + source + ": ")
              + inOneLine(error)
              + ": "
              + inOneLine(record));
    }
  }
}
