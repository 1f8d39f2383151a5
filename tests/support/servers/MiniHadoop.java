import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS with one data node and YARN with node managers, in this process, until its input ends.
 *
 * <p>Arguments: a file for the configuration of clients, which appears when all are ready; the number of node
 * managers; settings as name=value.
 */
public class MiniHadoop {
    private static final String FILES = "fs.AbstractFileSystem.file.impl";
    private static final String RACKS = "net.topology.node.switch.mapping.impl";

    public static void main(String[] args) throws Exception {
        Configuration conf = new YarnConfiguration();
        conf.setClassLoader(MiniHadoop.class.getClassLoader());
        for (int i = 2; i < args.length; i++) {
            String[] setting = args[i].split("=", 2);
            conf.set(setting[0], setting[1]);
        }
        MiniDFSCluster files = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
        conf.set(FILES, Files.class.getName());
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", Integer.parseInt(args[1]), 1, 1);
        yarn.init(conf);
        yarn.start();
        if (!yarn.waitForNodeManagersToConnect(60000)) {
            throw new IllegalStateException("no node manager has connected");
        }

        Configuration written = new Configuration(yarn.getConfig());
        written.unset(FILES);
        written.unset(RACKS);  // a class of Hadoop's tests
        File part = new File(args[0] + ".part");
        OutputStream out = new FileOutputStream(part);
        written.writeXml(out);
        out.close();
        part.renameTo(new File(args[0]));

        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    /** Hadoop without its native library runs chmod for every file of an archive that a node manager unpacks. */
    public static class Files extends DelegateToFileSystem {
        public Files(URI uri, Configuration conf) throws IOException, URISyntaxException {
            super(uri, new JavaModes(), conf, "file", false);
        }
    }

    public static class JavaModes extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission modes) throws IOException {
            String text = modes.getUserAction().SYMBOL + modes.getGroupAction().SYMBOL + modes.getOtherAction().SYMBOL;
            java.nio.file.Path file = pathToFile(path).toPath();
            java.nio.file.Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(text));
        }
    }
}
