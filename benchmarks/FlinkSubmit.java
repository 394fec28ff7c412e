import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/** Submits the INSERT of a file of SQL statements to the cluster of a configuration directory, prints the job's id. */
public class FlinkSubmit {
    public static void main(String[] arguments) throws Exception {
        var configuration = GlobalConfiguration.loadConfiguration(arguments[0]);
        configuration.setString("execution.target", "remote");
        var settings = EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build();
        var tables = TableEnvironment.create(settings);
        for (var statement : Files.readString(Path.of(arguments[1])).split(";\n")) {
            if (!statement.isBlank()) {
                tables.executeSql(statement).getJobClient().ifPresent(job -> System.out.println(job.getJobID()));
            }
        }
        System.exit(0); // threads of the client are still there
    }
}
