import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * What Kafka's SslPrincipalMapper calls subjects. A line of input: rules, a tab, a subject. A line of output: {@code =} and
 * the name, {@code none} where no rule applies, {@code refused} where the rules cannot be read or obeyed.
 */
public final class MapNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int tab = line.indexOf('\t');
            out.println(answer(line.substring(0, tab), line.substring(tab + 1)));
        }
        out.flush();
    }

    private static String answer(String rules, String subject) {
        try {
            return "=" + SslPrincipalMapper.fromRules(rules).getName(subject);
        } catch (Exception exception) {
            return exception.getClass().getSimpleName().equals("NoMatchingRule") ? "none" : "refused";
        }
    }
}
