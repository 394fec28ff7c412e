package org.minflinkd;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.local.LocalConfigKeys;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file systems, without forking processes.
 *
 * If Hadoop's native library is missing, as it is in pyspark, Hadoop runs `chmod` for every file that it creates, and
 * `readlink` twice before every rename. Spark writes and renames a file for each log and each state of a micro-batch.
 */
public final class LocalFiles {
  private LocalFiles() {}

  /** Replaces org.apache.hadoop.fs.RawLocalFileSystem. */
  public static class Raw extends RawLocalFileSystem {
    private static final PosixFilePermission[] PERMISSIONS = PosixFilePermission.values(); // as in rwxrwxrwx

    @Override
    public void setPermission(org.apache.hadoop.fs.Path file, FsPermission permission) throws IOException {
      int mode = permission.toShort();
      if ((mode & ~0777) != 0) { // Java cannot set the sticky bit
        super.setPermission(file, permission);
        return;
      }
      Set granted = EnumSet.noneOf(PosixFilePermission.class);
      for (int i = 0; i < PERMISSIONS.length; i++) {
        if ((mode & (0400 >> i)) != 0) granted.add(PERMISSIONS[i]);
      }
      Files.setPosixFilePermissions(local(file), granted);
    }

    @Override
    public FileStatus getFileLinkStatus(org.apache.hadoop.fs.Path file) throws IOException {
      return Files.isSymbolicLink(local(file)) ? super.getFileLinkStatus(file) : getFileStatus(file);
    }

    private Path local(org.apache.hadoop.fs.Path file) {
      return pathToFile(file).toPath();
    }
  }

  /** Replaces org.apache.hadoop.fs.LocalFileSystem, and writes checksums as that does. */
  public static class Checked extends LocalFileSystem {
    public Checked() {
      super(new Raw());
    }
  }

  /** Replaces org.apache.hadoop.fs.local.RawLocalFs, for FileContext. */
  public static class Context extends DelegateToFileSystem {
    public Context(URI uri, Configuration conf) throws IOException, URISyntaxException {
      super(uri, new Raw(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    @Override
    public int getUriDefaultPort() {
      return -1;
    }

    @Override
    public FsServerDefaults getServerDefaults() throws IOException {
      return LocalConfigKeys.getServerDefaults();
    }

    @Override
    public boolean isValidName(String name) {
      return true;
    }
  }
}
