package mainstem.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main classes of Kafka's command line tools one after another in one JVM.
 *
 * <p>Starting a JVM costs a second or more; a run of the tools makes dozens of calls. Each line of standard input is
 * a call, {@code {"main": CLASS, "args": [..], "stdin": TEXT}}, and is answered by one line of standard output,
 * {@code {"exit": CODE, "out": TEXT, "err": TEXT}}. The tools leave through Kafka's own {@code Exit}, which lets
 * itself be replaced; a tool that ends by returning from {@code main} has exit code 0.
 */
public final class Runner {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** What tools want to run when their process ends: run when their call ends. */
    private static final List<Runnable> HOOKS = Collections.synchronizedList(new ArrayList<>());

    /** How the present call left. A tool that catches it and leaves again does not change that. */
    private static volatile Left left;

    /** Thrown in place of ending the process. An Error, so that a tool's {@code catch (Exception e)} lets it pass. */
    @SuppressWarnings("serial")
    private static final class Left extends Error {
        final int code;

        Left(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    private Runner() {}

    public static void main(String[] args) throws Exception {
        PrintStream replies = System.out;
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> leave(code, message));
        Exit.setHaltProcedure((code, message) -> leave(code, message));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            replies.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            replies.flush();
        }
        System.exit(0);
    }

    private static void leave(int code, String message) {
        if (message != null) {
            System.err.println(message);
        }
        if (left == null) {
            left = new Left(code);
        }
        throw left;
    }

    private static ObjectNode run(JsonNode call) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        InputStream oldIn = System.in;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        System.setIn(new ByteArrayInputStream(call.path("stdin").asText("").getBytes(StandardCharsets.UTF_8)));
        int code;
        left = null;
        try {
            code = invoke(call.get("main").asText(), arguments(call));
        } finally {
            runHooks();
            System.setOut(oldOut);
            System.setErr(oldErr);
            System.setIn(oldIn);
        }
        return JSON.createObjectNode()
            .put("exit", code)
            .put("out", out.toString(StandardCharsets.UTF_8))
            .put("err", err.toString(StandardCharsets.UTF_8));
    }

    private static String[] arguments(JsonNode call) {
        List<String> arguments = new ArrayList<>();
        call.get("args").forEach(argument -> arguments.add(argument.asText()));
        return arguments.toArray(new String[0]);
    }

    private static int invoke(String main, String[] arguments) {
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return left == null ? 0 : left.code;
        } catch (InvocationTargetException e) {
            if (left != null) {
                return left.code;
            }
            e.getCause().printStackTrace();
            return 1;
        } catch (ReflectiveOperationException e) {
            e.printStackTrace();
            return 1;
        }
    }

    private static void runHooks() {
        List<Runnable> hooks;
        synchronized (HOOKS) {
            hooks = new ArrayList<>(HOOKS);
            HOOKS.clear();
        }
        for (Runnable hook : hooks) {
            try {
                hook.run();
            } catch (Left again) {
                // A hook may try to end the process, too; it has nothing more to do.
            } catch (RuntimeException e) {
                StringWriter trace = new StringWriter();
                e.printStackTrace(new PrintWriter(trace));
                System.err.print(trace);
            }
        }
    }
}
