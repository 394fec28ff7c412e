package org.minflinkd;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.Serializable;
import java.net.HttpURLConnection;
import java.net.URL;
import java.net.URLEncoder;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.Collection;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

import org.apache.avro.NameValidator;
import org.apache.avro.Schema;

/**
 * A Schema Registry that speaks Confluent's HTTP API. Decides nothing about records.
 *
 * A schema never changes under its id, so each is asked for once in a JVM. What the registry says is kept apart by who
 * has asked: another job may not see what it has no right to.
 */
public final class SchemaRegistry implements Serializable {
  private static final int CONNECT = 5_000; // ms
  private static final int ANSWER = 10_000; // ms
  private static final int LARGEST = 16 * 1024 * 1024; // bytes of an answer
  private static final long FIRST_PAUSE = 250; // ms between two tries, doubled each time
  private static final long LONGEST_PAUSE = 8_000; // ms
  private static final int TRIES_OF_UNKNOWN = 3; // a server may not have read yet what another one has registered
  private static final long REMEMBERED = 30_000; // ms, that a registry does not know an id, or has something else there
  private static final int DEEPEST = 32; // references of references
  private static final Map SCHEMAS = new ConcurrentHashMap(); // registry and id -> Schema, or Unusable
  private static final ObjectMapper JSON = new ObjectMapper();

  private final String[] urls;
  private final String authorization;
  private final String certificates;
  private final long patience;
  private transient volatile SSLSocketFactory sockets;

  /**
   * Urls: divided by commas; one after the other is tried. Authorization: a header, or null. Certificates: who is
   * trusted, in PEM; null: whom Java trusts. Patience: ms that a micro-batch waits for a registry that is away.
   */
  public SchemaRegistry(String urls, String authorization, String certificates, long patience) {
    this.urls = urls.split("\\s*,\\s*");
    this.authorization = authorization;
    this.certificates = certificates;
    this.patience = patience;
  }

  /** Stands in plans, and must tell no secret. */
  public String toString() {
    return "registry";
  }

  /** Returns the schema of an id. Waits for a registry that is away, within limits; throws Unknown, Away, Refused. */
  Schema byId(int id) {
    String key = identity() + "\n" + id;
    Object known = SCHEMAS.get(key);
    if (known instanceof Schema) return (Schema) known;
    if (known != null && System.currentTimeMillis() < ((Unusable) known).until) throw new Unknown(((Unusable) known).why);
    try {
      JsonNode answer = ask("GET", "/schemas/ids/" + id, null, patience);
      Schema schema = parsed(answer, "the schema " + id);
      SCHEMAS.put(key, schema);
      return schema;
    } catch (Unknown error) {
      SCHEMAS.put(key, new Unusable(error.why, System.currentTimeMillis() + REMEMBERED));
      throw error;
    }
  }

  /**
   * Returns a version of a subject: its number, its id, and its schema with all that it refers to. Version: a number, or
   * `latest`. Throws Unknown, Away, Refused.
   */
  public String[] ofSubject(String subject, String version, long timeout) {
    String path = "/subjects/" + quoted(subject) + "/versions/" + quoted(version);
    JsonNode answer = ask("GET", path, null, timeout);
    Schema schema = parsed(answer, "the schema of " + subject);
    return new String[] {text(answer, "version"), text(answer, "id"), schema.toString()};
  }

  /** Reads an answer with a schema. What it refers to is asked for, too, and becomes a part of it. */
  private Schema parsed(JsonNode answer, String what) {
    String type = answer.has("schemaType") ? text(answer, "schemaType") : "AVRO";
    if (!type.equals("AVRO")) throw new Unknown(what + " is of the type " + type + ", and format: avro reads AVRO");
    Schema.Parser parser = lenient();
    include(parser, answer, DEEPEST);
    try {
      return parser.parse(text(answer, "schema"));
    } catch (RuntimeException error) {
      throw new Unknown(what + " is no Avro schema: " + error.getMessage());
    }
  }

  private void include(Schema.Parser parser, JsonNode answer, int depth) {
    Iterator references = ((JsonNode) answer.path("references")).elements();
    while (references.hasNext()) {
      JsonNode reference = (JsonNode) references.next();
      String name = text(reference, "name");
      if (parser.getTypes().containsKey(name)) continue; // two schemas refer to it
      if (depth == 0) throw new Unknown("schemas refer to each other more than " + DEEPEST + " times: " + name);
      String path = "/subjects/" + quoted(text(reference, "subject")) + "/versions/";
      JsonNode found = ask("GET", path + text(reference, "version"), null, patience);
      include(parser, found, depth - 1);
      if (!parser.getTypes().containsKey(name)) parser.parse(text(found, "schema"));
    }
  }

  /** Returns a parser that takes what others have written, although a new schema would have to be stricter. */
  static Schema.Parser lenient() {
    Schema.Parser parser = new Schema.Parser(NameValidator.NO_VALIDATION);
    parser.setValidateDefaults(false);
    return parser;
  }

  /** Asks until there is an answer, or for as long as the timeout says, in ms. Throws Unknown, Away, Refused. */
  private JsonNode ask(String method, String path, String body, long timeout) {
    long until = System.currentTimeMillis() + timeout;
    long pause = FIRST_PAUSE;
    int unknown = 0;
    for (int tries = 0; ; tries++) {
      String url = urls[tries % urls.length];
      String why;
      try {
        Answer answer = send(method, url.replaceFirst("/+$", "") + path, body);
        if (answer.status == 200) return JSON.readTree(answer.text);
        why = url + " answers " + answer.status + said(answer.text);
        if (answer.status == 404 && answer.isRegistrys()) {
          if (++unknown >= TRIES_OF_UNKNOWN) throw new Unknown(why);
        } else if (answer.status < 500 && answer.status != 408 && answer.status != 429) {
          throw new Refused(why);
        }
      } catch (IOException error) {
        why = url + ": " + error;
      }
      long now = System.currentTimeMillis();
      if (now + pause > until && (tries + 1) % urls.length == 0) throw new Away(why);
      pause(pause);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }

  private static void pause(long ms) {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException error) { // the task is stopped
      Thread.currentThread().interrupt();
      throw new Away("the task was stopped while it waited for the registry");
    }
  }

  private Answer send(String method, String url, String body) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) new URL(url).openConnection();
    try {
      connection.setInstanceFollowRedirects(false); // the credentials are for this server
      connection.setConnectTimeout(CONNECT);
      connection.setReadTimeout(ANSWER);
      connection.setUseCaches(false);
      connection.setRequestMethod(method);
      connection.setRequestProperty("Accept", "application/vnd.schemaregistry.v1+json, application/json");
      if (authorization != null) connection.setRequestProperty("Authorization", authorization);
      if (certificates != null && connection instanceof HttpsURLConnection) {
        ((HttpsURLConnection) connection).setSSLSocketFactory(sockets());
      }
      if (body != null) {
        connection.setRequestProperty("Content-Type", "application/vnd.schemaregistry.v1+json");
        connection.setDoOutput(true);
        OutputStream out = connection.getOutputStream();
        out.write(body.getBytes("UTF-8"));
        out.close();
      }
      int status = connection.getResponseCode();
      return new Answer(status, content(status < 400 ? connection.getInputStream() : connection.getErrorStream()));
    } finally {
      connection.disconnect();
    }
  }

  /** Reads an answer to its end. A server that sends a byte now and then does not hold it up for longer than others. */
  private static String content(InputStream in) throws IOException {
    if (in == null) return "";
    long until = System.currentTimeMillis() + ANSWER;
    ByteArrayOutputStream read = new ByteArrayOutputStream();
    byte[] part = new byte[8192];
    for (int n = in.read(part); n >= 0; n = in.read(part)) {
      read.write(part, 0, n);
      if (read.size() > LARGEST) throw new IOException("an answer of more than " + LARGEST + " bytes");
      if (System.currentTimeMillis() > until) throw new IOException("no whole answer within " + ANSWER + " ms");
    }
    return read.toString("UTF-8");
  }

  private SSLSocketFactory sockets() throws IOException {
    if (sockets == null) {
      try {
        Collection trusted =
            CertificateFactory.getInstance("X.509")
                .generateCertificates(new ByteArrayInputStream(certificates.getBytes("UTF-8")));
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        Iterator each = trusted.iterator();
        for (int i = 0; each.hasNext(); i++) store.setCertificateEntry("ca" + i, (Certificate) each.next());
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        sockets = context.getSocketFactory();
      } catch (java.security.GeneralSecurityException error) {
        throw new IOException("the certificates of ca cannot be used");
      }
    }
    return sockets;
  }

  /** A text of an answer; "" if it is not there. */
  static String text(JsonNode answer, String name) {
    return ((JsonNode) answer.path(name)).asText();
  }

  /** What registries say of an error, without what else is in such an answer. */
  private static String said(String text) {
    String message = "";
    try {
      message = text(JSON.readTree(text), "message");
    } catch (IOException error) {
      return ""; // a page of HTML, perhaps
    }
    return message.isEmpty() ? "" : ": " + (message.length() > 300 ? message.substring(0, 300) + "..." : message);
  }

  private String identity() {
    return String.join(",", urls) + "\n" + authorization;
  }

  private static String quoted(String name) {
    try {
      return URLEncoder.encode(name, "UTF-8").replace("+", "%20");
    } catch (java.io.UnsupportedEncodingException error) {
      throw new IllegalStateException(error);
    }
  }

  /** A schema that the registry does not know, or that is none of Avro's. */
  private static final class Unusable {
    final String why;
    final long until;

    Unusable(String why, long until) {
      this.why = why;
      this.until = until;
    }
  }

  private static final class Answer {
    final int status;
    final String text;

    Answer(int status, String text) {
      this.status = status;
      this.text = text;
    }

    /** Whether a registry says that something is unknown, with its own code for that; not some other server. */
    boolean isRegistrys() {
      try {
        return SchemaRegistry.text(JSON.readTree(text), "error_code").matches("404\\d\\d");
      } catch (IOException error) {
        return false;
      }
    }
  }

  /** There is no such schema, or none that can be used. */
  public static final class Unknown extends RuntimeException {
    final String why;

    Unknown(String why) {
      super("[SCHEMA_UNKNOWN] " + why);
      this.why = why;
    }
  }

  /** There was no answer in time. */
  public static final class Away extends RuntimeException {
    Away(String why) {
      super("[SCHEMA_REGISTRY_AWAY] " + why);
    }
  }

  /** The registry does not take the request: wrong credentials, or no registry at all. */
  public static final class Refused extends RuntimeException {
    Refused(String why) {
      super("[SCHEMA_REGISTRY_REFUSED] " + why);
    }
  }
}
