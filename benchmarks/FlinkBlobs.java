import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.BlobServerOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.blob.BlobClient;
import org.apache.flink.runtime.blob.BlobServer;
import org.apache.flink.runtime.blob.PermanentBlobCache;
import org.apache.flink.runtime.blob.PermanentBlobKey;
import org.apache.flink.runtime.blob.VoidBlobStore;

/**
 * Flink's own BlobServer, or its client: `server DIRECTORY` prints its port and serves until stdin ends; `client PORT
 * DIRECTORY` answers each line `put FILE`, `get` (of what was put last) and `all` (of all that was put, at once) with
 * nanoseconds.
 */
public class FlinkBlobs {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set(BlobServerOptions.FETCH_BACKLOG, 1000);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        if (arguments[0].equals("server")) {
            BlobServer server = new BlobServer(configuration, new File(arguments[1]), new VoidBlobStore());
            server.start();
            System.out.println(server.getPort());
            while (lines.readLine() != null) {}
            server.close();
        } else {
            var address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1]));
            new FlinkBlobs(configuration, address, new File(arguments[2])).answer(lines);
        }
    }

    private final Configuration configuration;
    private final InetSocketAddress server;
    private final File directory;
    private final JobID job = new JobID();
    private final List<PermanentBlobKey> keys = new ArrayList<>();
    private int caches = 0;

    FlinkBlobs(Configuration configuration, InetSocketAddress server, File directory) {
        this.configuration = configuration;
        this.server = server;
        this.directory = directory;
    }

    void answer(BufferedReader lines) throws Exception {
        for (String line; (line = lines.readLine()) != null; ) {
            if (line.equals("get")) {
                System.out.println(get(keys.subList(keys.size() - 1, keys.size())));
            } else if (line.equals("all")) {
                System.out.println(get(keys));
            } else {
                System.out.println(put(line.substring("put ".length())));
            }
        }
    }

    private long put(String file) throws Exception {
        long began = System.nanoTime();
        try (BlobClient client = new BlobClient(server, configuration)) {
            keys.add(client.uploadFile(job, new Path(file)));
        }
        return System.nanoTime() - began;
    }

    /** Into a cache that has none of them, each in a thread of its own. */
    private long get(List<PermanentBlobKey> wanted) throws Exception {
        File own = new File(directory, "cache" + caches++);
        ExecutorService threads = Executors.newFixedThreadPool(wanted.size());
        try (var cache = new PermanentBlobCache(configuration, own, new VoidBlobStore(), server)) {
            cache.registerJob(job, null);
            List<Callable<File>> downloads = new ArrayList<>();
            for (PermanentBlobKey key : wanted) {
                downloads.add(() -> cache.getFile(job, key));
            }
            long began = System.nanoTime();
            for (var downloaded : threads.invokeAll(downloads)) {
                if (!Files.exists(downloaded.get().toPath())) throw new IllegalStateException("not there");
            }
            return System.nanoTime() - began;
        } finally {
            threads.shutdown();
        }
    }
}
