import java.io.ByteArrayInputStream;
import java.io.PrintStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPairGenerator;
import java.security.KeyStore;
import java.security.Principal;
import java.security.PrivateKey;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedKeyManager;

/**
 * What Java says to certificates, in handshakes of two engines within this process. The argument is the folder of cases.txt; a
 * line of output is a case, a colon, and {@code accepted} or what the engine that is shown the certificate throws. Engines are
 * made as by Kafka's DefaultSslEngineFactory: the trust manager is that of PKIX, and clients check names by HTTPS.
 */
public final class Handshakes {
    private static Path folder;

    public static void main(String[] arguments) throws Exception {
        folder = Path.of(arguments[0]);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        String vendor = System.getProperty("java.vendor"), name = System.getProperty("java.vm.name");
        out.println("# " + name + " " + System.getProperty("java.runtime.version") + ", " + vendor);
        for (String line : Files.readAllLines(folder.resolve("cases.txt"))) {
            String[] parts = line.split(" ");
            boolean isClient = parts[1].equals("client");
            out.println(line + ": " + oneLine(isClient ? ofClient(parts[0]) : ofServer(parts[0], parts[2])));
        }
        out.flush();
    }

    private static String oneLine(String text) {
        return text.replaceAll("\\s*\n\\s*", " ").strip();
    }

    private static String ofClient(String name) throws Exception {
        Peer peer;
        try {
            peer = Peer.read(name);
        } catch (GeneralSecurityException exception) {
            return refused(exception);
        }
        SSLEngine server = context(Peer.read("plain"), trust(name)).createSSLEngine("localhost", 1);
        server.setUseClientMode(false);
        server.setNeedClientAuth(true);
        SSLEngine client = context(peer, trust("root")).createSSLEngine("localhost", 1);
        client.setUseClientMode(true);
        return verdict(client, server, server);
    }

    private static String ofServer(String name, String host) throws Exception {
        Peer peer;
        try {
            peer = Peer.read(name);
        } catch (GeneralSecurityException exception) {
            return refused(exception);
        }
        SSLEngine server = context(peer, trust("root")).createSSLEngine("localhost", 1);
        server.setUseClientMode(false);
        SSLEngine client = context(null, trust(name)).createSSLEngine(host, 1);
        client.setUseClientMode(true);
        SSLParameters parameters = client.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
        client.setSSLParameters(parameters);
        return verdict(client, server, client);
    }

    private static String refused(Throwable exception) {
        Throwable deepest = exception;
        while (deepest.getCause() != null) {
            deepest = deepest.getCause();
        }
        return deepest.getMessage();
    }

    private static SSLContext context(Peer peer, List<X509Certificate> trusted) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        for (int number = 0; number < trusted.size(); number++) {
            store.setCertificateEntry("kafka" + number, trusted.get(number));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLSv1.3");
        context.init(peer == null ? null : new KeyManager[] {peer}, trust.getTrustManagers(), null);
        return context;
    }

    private static List<X509Certificate> trust(String name) throws Exception {
        Path own = folder.resolve("pem").resolve(name + ".trust.pem");
        return certificates(Files.exists(own) ? own : folder.resolve("pem/root.trust.pem"));
    }

    private static List<X509Certificate> certificates(Path file) throws Exception {
        List<X509Certificate> certificates = new ArrayList<>();
        for (byte[] bytes : blocks(file, "CERTIFICATE")) {
            CertificateFactory factory = CertificateFactory.getInstance("X.509");
            certificates.add((X509Certificate) factory.generateCertificate(new ByteArrayInputStream(bytes)));
        }
        return certificates;
    }

    private static List<byte[]> blocks(Path file, String kind) throws Exception {
        List<byte[]> blocks = new ArrayList<>();
        Matcher matcher = Pattern.compile("-----BEGIN " + kind + "-----([^-]*)-----END").matcher(Files.readString(file));
        while (matcher.find()) {
            blocks.add(Base64.getMimeDecoder().decode(matcher.group(1)));
        }
        return blocks;
    }

    /** Lets both talk until the one that is shown the certificate has made up its mind. */
    private static String verdict(SSLEngine client, SSLEngine server, SSLEngine judge) {
        ByteBuffer toServer = ByteBuffer.allocate(1 << 18), toClient = ByteBuffer.allocate(1 << 18);
        String shower = null;
        for (int round = 0; round < 20; round++) {
            for (SSLEngine engine : new SSLEngine[] {client, server}) {
                boolean isClient = engine == client;
                try {
                    if (turn(engine, isClient ? toClient : toServer, isClient ? toServer : toClient) && engine == judge) {
                        return "accepted";
                    }
                } catch (SSLException exception) {
                    if (engine == judge) {
                        return shower == null ? refused(exception) : "not shown: " + shower;
                    }
                    shower = refused(exception);
                }
            }
        }
        return "not shown: " + shower;
    }

    /** Whether the handshake is over for an engine, after all that it can do now. */
    private static boolean turn(SSLEngine engine, ByteBuffer in, ByteBuffer out) throws SSLException {
        ByteBuffer none = ByteBuffer.allocate(0), plain = ByteBuffer.allocate(1 << 17);
        if (engine.getHandshakeStatus() == HandshakeStatus.NOT_HANDSHAKING && engine.getSession().isValid()) {
            return true;
        }
        engine.beginHandshake();
        while (true) {
            switch (engine.getHandshakeStatus()) {
                case NEED_TASK -> engine.getDelegatedTask().run();
                case NEED_WRAP -> {
                    if (engine.wrap(none, out).getStatus() == SSLEngineResult.Status.CLOSED) {
                        return false;
                    }
                }
                case NEED_UNWRAP -> {
                    in.flip();
                    SSLEngineResult result;
                    try {
                        result = engine.unwrap(in, plain);
                    } finally {
                        in.compact();
                    }
                    if (result.getStatus() != SSLEngineResult.Status.OK) {
                        return false;
                    }
                }
                default -> {
                    return true;
                }
            }
        }
    }

    /** A key and the chain that is shown with it, whatever Java's key stores would make of them. */
    private static final class Peer extends X509ExtendedKeyManager {
        private final PrivateKey key;
        private final X509Certificate[] chain;

        private Peer(PrivateKey key, X509Certificate[] chain) {
            this.key = key;
            this.chain = chain;
        }

        static Peer read(String name) throws Exception {
            Path file = folder.resolve("pem").resolve(name + ".pem");
            X509Certificate[] chain = certificates(file).toArray(new X509Certificate[0]);
            return new Peer(key(blocks(file, "PRIVATE KEY").get(0)), chain);
        }

        /** Of a kind that Java does not know another key, which the certificate does not fit: it is to be refused before. */
        private static PrivateKey key(byte[] bytes) throws Exception {
            for (String algorithm : new String[] {"EC", "RSA", "EdDSA", "RSASSA-PSS"}) {
                try {
                    return KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(bytes));
                } catch (GeneralSecurityException exception) {
                    continue;
                }
            }
            KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
            return generator.generateKeyPair().getPrivate();
        }

        private String chosen(String... types) {
            for (String type : types) {
                if (type.equals(key.getAlgorithm())) {
                    return "peer";
                }
            }
            return null;
        }

        @Override
        public String chooseEngineClientAlias(String[] types, Principal[] issuers, SSLEngine engine) {
            return chosen(types);
        }

        @Override
        public String chooseEngineServerAlias(String type, Principal[] issuers, SSLEngine engine) {
            return chosen(type);
        }

        @Override
        public X509Certificate[] getCertificateChain(String alias) {
            return chain;
        }

        @Override
        public PrivateKey getPrivateKey(String alias) {
            return key;
        }

        @Override
        public String[] getClientAliases(String type, Principal[] issuers) {
            return new String[] {"peer"};
        }

        @Override
        public String chooseClientAlias(String[] types, Principal[] issuers, Socket socket) {
            return chosen(types);
        }

        @Override
        public String[] getServerAliases(String type, Principal[] issuers) {
            return new String[] {"peer"};
        }

        @Override
        public String chooseServerAlias(String type, Principal[] issuers, Socket socket) {
            return chosen(type);
        }
    }
}
