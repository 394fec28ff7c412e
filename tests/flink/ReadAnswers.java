import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.flink.runtime.rest.messages.MessageHeaders;
import org.apache.flink.runtime.rest.util.RestMapperUtils;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JavaType;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.NullNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Reads answers of a minflinkd daemon with the message classes of Flink's own clients.
 *
 * <p>Input: one JSON object a line, with "method", "path" as in Flink's list of paths, and "body". Output: for each
 * line one JSON object, with "faults". An answer has a fault if Flink's RestClient could not read it, if it has a field
 * that Flink does not know (except for "minflinkd"), or if Flink, asked to write what it has read, writes a field that
 * is missing in the answer or has another value.
 */
public class ReadAnswers {
    private static final ObjectMapper AS_CLIENT = RestMapperUtils.getFlexibleObjectMapper();
    private static final ObjectMapper STRICT = RestMapperUtils.getStrictObjectMapper();
    private static final String OURS = "minflinkd";

    public static void main(String[] arguments) throws Exception {
        Map<String, MessageHeaders<?, ?, ?>> known = headers(Path.of(arguments[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = STRICT.readTree(line);
            ArrayNode faults = STRICT.createArrayNode();
            MessageHeaders<?, ?, ?> found = known.get(asked.get("method").asText() + " " + asked.get("path").asText());
            if (found == null) {
                faults.add("Flink's jar has no message for this path");
            } else {
                check(found, asked.get("body"), faults);
            }
            ObjectNode told = STRICT.createObjectNode();
            told.set("faults", faults);
            System.out.println(STRICT.writeValueAsString(told));
        }
    }

    private static void check(MessageHeaders<?, ?, ?> headers, JsonNode body, ArrayNode faults) throws Exception {
        Collection<Class<?>> parameters = headers.getResponseTypeParameters();
        JavaType type = parameters.isEmpty()
                ? STRICT.constructType(headers.getResponseClass())
                : STRICT.getTypeFactory().constructParametricType(
                        headers.getResponseClass(), parameters.toArray(new Class<?>[0]));
        Object read;
        try {
            read = AS_CLIENT.readValue(STRICT.writeValueAsString(body), type);
        } catch (Exception error) {
            faults.add("Flink's client cannot read it: " + error.getMessage());
            return;
        }
        JsonNode flinks = withoutOurs(body.deepCopy());
        try {
            STRICT.readValue(STRICT.writeValueAsString(flinks), type);
        } catch (Exception error) {
            faults.add("it has what Flink does not know: " + error.getMessage());
        }
        compare("", STRICT.readTree(STRICT.writeValueAsString(read)), flinks, faults);
    }

    private static JsonNode withoutOurs(JsonNode node) {
        if (node instanceof ObjectNode) {
            ((ObjectNode) node).remove(OURS);
        }
        node.forEach(ReadAnswers::withoutOurs);
        return node;
    }

    private static void compare(String where, JsonNode flink, JsonNode sent, ArrayNode faults) {
        if (flink.isObject() && sent.isObject()) {
            for (Iterator<Map.Entry<String, JsonNode>> fields = flink.fields(); fields.hasNext(); ) {
                Map.Entry<String, JsonNode> field = fields.next();
                JsonNode ours = sent.get(field.getKey());
                if (ours == null) {
                    faults.add(where + "/" + field.getKey() + " is missing");
                } else {
                    compare(where + "/" + field.getKey(), field.getValue(), ours, faults);
                }
            }
        } else if (flink.isArray() && sent.isArray() && flink.size() == sent.size()) {
            for (int at = 0; at < flink.size(); at++) {
                compare(where + "/" + at, flink.get(at), sent.get(at), faults);
            }
        } else if (!same(flink, sent)) {
            faults.add(where + " is " + sent + ", which Flink reads as " + flink);
        }
    }

    private static boolean same(JsonNode flink, JsonNode sent) {
        if (flink.isNumber() && sent.isNumber()) {
            return flink.asDouble() == sent.asDouble();
        }
        return flink.equals(sent) || (flink.isNull() && sent instanceof NullNode);
    }

    /** Returns the headers of all messages in the jar, by method and path. */
    private static Map<String, MessageHeaders<?, ?, ?>> headers(Path jar) throws Exception {
        List<String> names = new ArrayList<>();
        try (JarFile file = new JarFile(jar.toFile())) {
            for (JarEntry entry : (Iterable<JarEntry>) file.stream()::iterator) {
                String name = entry.getName();
                if (name.startsWith("org/apache/flink/runtime/") && name.endsWith("Headers.class")) {
                    names.add(name.substring(0, name.length() - ".class".length()).replace('/', '.'));
                }
            }
        }
        Map<String, MessageHeaders<?, ?, ?>> found = new HashMap<>();
        for (String name : names) {
            Class<?> kind = Class.forName(name);
            if (MessageHeaders.class.isAssignableFrom(kind) && !Modifier.isAbstract(kind.getModifiers())) {
                MessageHeaders<?, ?, ?> headers = (MessageHeaders<?, ?, ?>) instance(kind);
                found.put(headers.getHttpMethod() + " " + headers.getTargetRestEndpointURL(), headers);
            }
        }
        return found;
    }

    private static Object instance(Class<?> kind) throws Exception {
        try {
            return kind.getMethod("getInstance").invoke(null);
        } catch (NoSuchMethodException error) {
            Constructor<?> made = kind.getDeclaredConstructor();
            made.setAccessible(true);
            return made.newInstance();
        }
    }
}
