import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.ApiMessageType.ListenerType;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * The JVM's half of the differential codec test: Kafka's own generated classes behind a pipe.
 *
 * Each request is a 32-bit length, an operation, a message name (16-bit length), a 16-bit version and operands; each
 * reply a 32-bit length, 0 and bytes, or 1 and an error text. Operations: E reads and writes again, C writes in the
 * version that the operand begins with, P writes with the prefix or frame of the message's kind, G makes a random message
 * from a 64-bit seed, D writes one in which nothing is set, F lists facts as text.
 */
public final class CodecPeer {
    private static final String[] PLACES = {
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.metadata.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
        "org.apache.kafka.coordinator.transaction.generated.%s",
        "org.apache.kafka.coordinator.share.generated.%s",
    };

    private final Map<String, Class<?>> classes = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        CodecPeer peer = new CodecPeer();
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        while (true) {
            if (in.available() == 0) {
                out.flush();
            }
            byte[] request;
            try {
                request = new byte[in.readInt()];
            } catch (EOFException end) {
                out.flush();
                return;
            }
            in.readFully(request);
            byte status = 0;
            byte[] reply;
            try {
                reply = peer.answer(ByteBuffer.wrap(request));
            } catch (Exception | StackOverflowError error) {
                status = 1;
                reply = error.toString().getBytes(StandardCharsets.UTF_8);
            }
            out.writeInt(reply.length + 1);
            out.writeByte(status);
            out.write(reply);
        }
    }

    private byte[] answer(ByteBuffer request) throws Exception {
        char operation = (char) request.get();
        byte[] nameBytes = new byte[request.getShort()];
        request.get(nameBytes);
        String name = new String(nameBytes, StandardCharsets.UTF_8);
        short version = request.getShort();
        switch (operation) {
            case 'E':
                return write(read(name, version, request), version);
            case 'C': {
                short to = request.getShort();
                return write(read(name, version, request), to);
            }
            case 'P':
                return framed(name, read(name, version, request), version);
            case 'G':
                return write(random(name, version, new Random(request.getLong())), version);
            case 'D':
                return write(instance(name), version);
            case 'F':
                return facts().getBytes(StandardCharsets.UTF_8);
            default:
                throw new IllegalArgumentException("operation " + operation);
        }
    }

    private Class<?> classOf(String name) throws ClassNotFoundException {
        Class<?> known = classes.get(name);
        if (known != null) {
            return known;
        }
        for (String place : PLACES) {
            try {
                Class<?> found = Class.forName(String.format(place, name));
                if (Message.class.isAssignableFrom(found)) {
                    classes.put(name, found);
                    return found;
                }
            } catch (ClassNotFoundException elsewhere) {
                // The next place may have it.
            }
        }
        throw new ClassNotFoundException(name);
    }

    private Message instance(String name) throws Exception {
        return (Message) classOf(name).getDeclaredConstructor().newInstance();
    }

    private Message read(String name, short version, ByteBuffer bytes) throws Exception {
        Message message = instance(name);
        ByteBuffer body = bytes.slice();
        message.read(new ByteBufferAccessor(body), version);
        if (body.hasRemaining()) {
            throw new IllegalStateException(body.remaining() + " bytes after the message");
        }
        return message;
    }

    private static byte[] write(Message message, short version) {
        return bytesOf(MessageUtil.toByteBufferAccessor(message, version).buffer());
    }

    private static byte[] bytesOf(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    private static byte[] framed(String name, Message message, short version) {
        if (message.getClass().getName().startsWith("org.apache.kafka.common.metadata.")) {
            ApiMessageAndVersion record = new ApiMessageAndVersion((ApiMessage) message, version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
            MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
            buffer.flip();
            return bytesOf(buffer);
        }
        if (name.endsWith("Key")) {
            return MessageUtil.toCoordinatorTypePrefixedBytes((ApiMessage) message);
        }
        return MessageUtil.toVersionPrefixedBytes(version, message);
    }

    /** A message in which every field that the version has is random, made by walking Kafka's own schema. */
    private Message random(String name, short version, Random random) throws Exception {
        Message message = instance(name);
        Schema[] schemas = (Schema[]) message.getClass().getField("SCHEMAS").get(null);
        fill(message, schemas[version], random);
        return message;
    }

    private static void fill(Object target, Schema schema, Random random) throws Exception {
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields tagged) {
                for (org.apache.kafka.common.protocol.types.Field field : tagged.fields().values()) {
                    if (random.nextBoolean()) {
                        set(target, field, random);
                    }
                }
            } else {
                set(target, bound.def, random);
            }
        }
    }

    private static void set(Object target, org.apache.kafka.common.protocol.types.Field schema, Random random)
            throws Exception {
        Field field = fieldOf(target.getClass(), schema.name);
        field.setAccessible(true);
        if (schema.type.isNullable() && random.nextInt(4) == 0) {
            field.set(target, null);
        } else {
            field.set(target, value(field.getType(), field.getGenericType(), schema.type, random));
        }
    }

    private static Field fieldOf(Class<?> owner, String schemaName) throws NoSuchFieldException {
        for (Field field : owner.getDeclaredFields()) {
            boolean isStatic = Modifier.isStatic(field.getModifiers());
            if (!isStatic && field.getName().replace("_", "").equalsIgnoreCase(schemaName.replace("_", ""))) {
                return field;
            }
        }
        throw new NoSuchFieldException(owner.getName() + "." + schemaName);
    }

    private static Object value(Class<?> type, java.lang.reflect.Type generic, Type schema, Random random)
            throws Exception {
        if (schema.isArray()) {
            return list(type, generic, schema.arrayElementType().get(), random);
        }
        if (type == boolean.class || type == Boolean.class) return random.nextBoolean();
        if (type == byte.class || type == Byte.class) return (byte) random.nextInt();
        if (type == short.class || type == Short.class) return (short) random.nextInt();
        if (type == int.class || type == Integer.class) {
            return schema == Type.UINT16 ? random.nextInt(1 << 16) : random.nextInt();
        }
        if (type == long.class || type == Long.class) {
            return schema == Type.UNSIGNED_INT32 ? random.nextLong() & 0xffffffffL : random.nextLong();
        }
        if (type == double.class || type == Double.class) return random.nextGaussian() * 1e9;
        if (type == String.class) return text(random);
        if (type == Uuid.class) return new Uuid(random.nextLong(), random.nextLong());
        if (type == byte[].class) return bytes(random);
        if (type == ByteBuffer.class) return ByteBuffer.wrap(bytes(random));
        if (type.getSimpleName().equals("BaseRecords")) {
            return MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(random)));
        }
        Object nested = type.getDeclaredConstructor().newInstance();
        fill(nested, structure(schema), random);
        return nested;
    }

    /** A structure that may be null wraps its schema. */
    private static Schema structure(Type type) throws Exception {
        if (type instanceof Schema schema) {
            return schema;
        }
        for (Field field : type.getClass().getDeclaredFields()) {
            if (Schema.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                return (Schema) field.get(type);
            }
        }
        throw new IllegalArgumentException("no structure: " + type);
    }

    @SuppressWarnings("unchecked")
    private static Object list(Class<?> type, java.lang.reflect.Type generic, Type element, Random random)
            throws Exception {
        boolean isPlain = type == List.class;
        java.lang.reflect.Type owner = isPlain ? generic : type.getGenericSuperclass();
        Class<?> elementType = (Class<?>) ((ParameterizedType) owner).getActualTypeArguments()[0];
        Collection<Object> items = isPlain
            ? new ArrayList<>()
            : (Collection<Object>) type.getDeclaredConstructor().newInstance();
        for (int count = random.nextInt(4); count > 0; count--) {
            items.add(value(elementType, elementType, element, random));
        }
        return items;
    }

    private static String text(Random random) {
        String letters = "abcxyzQ09-._ äλ中";
        StringBuilder text = new StringBuilder();
        int length = random.nextInt(16) == 0 ? 100 + random.nextInt(200) : random.nextInt(9);
        for (int at = 0; at < length; at++) {
            text.append(letters.charAt(random.nextInt(letters.length())));
        }
        return text.toString();
    }

    private static byte[] bytes(Random random) {
        byte[] bytes = new byte[random.nextInt(16) == 0 ? 100 + random.nextInt(200) : random.nextInt(9)];
        random.nextBytes(bytes);
        return bytes;
    }

    /** One line per API that a broker serves and per error code. */
    private static String facts() {
        StringBuilder facts = new StringBuilder();
        for (ApiKeys key : ApiKeys.values()) {
            ApiMessageType type = key.messageType;
            if (!type.listeners().contains(ListenerType.BROKER) || !key.hasValidVersion()) {
                continue;
            }
            var advertised = key.toApiVersionForApiResponse(false, ListenerType.BROKER).get();
            short newest = key.latestVersion(false);
            facts.append(String.format("api %d %s %d-%d advertised %d-%d headers", key.id, type.name.replace("_", ""),
                key.oldestVersion(), newest, advertised.minVersion(), advertised.maxVersion()));
            for (short version = key.oldestVersion(); version <= newest; version++) {
                facts.append(String.format(" %d/%d", key.requestHeaderVersion(version),
                    key.responseHeaderVersion(version)));
            }
            facts.append('\n');
        }
        for (Errors error : Errors.values()) {
            boolean retriable = error.exception() instanceof RetriableException;
            facts.append(String.format("error %d %s %s%n", error.code(), error.name(), retriable));
        }
        return facts.toString();
    }
}
