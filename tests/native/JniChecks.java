import static java.nio.charset.StandardCharsets.UTF_8;

import edgedecode.Native;
import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;

/** Calls the library as an app does, on threads of its own; prints what Python compares. Fails with an exception. */
public class JniChecks {
    static final byte[] NONE = "{}".getBytes(UTF_8);
    static final String ENDLESS = "{\"message\": \"Tell me a story.\", \"max_tokens\": 1500, \"seed\": 1}";
    static byte[] folder, options;

    interface Call {
        Object run() throws Exception;
    }

    static void require(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    /** Returns the sentence of the exception of this type that the call must throw. */
    static String thrown(Class<? extends Throwable> type, Call call) {
        try {
            Object found = call.run();
            throw new AssertionError("nothing was thrown, but returned: " + found);
        } catch (Throwable error) {
            if (!type.isInstance(error)) throw new AssertionError(error);
            return error.getMessage();
        }
    }

    static byte[] answer(long session, String request) {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        Native.generate(session, request.getBytes(UTF_8), piece -> {
            text.writeBytes(piece);
            return true;
        });
        return text.toByteArray();
    }

    static long session(long pack) {
        return Native.session(pack, "{\"ignore_eos\": true}".getBytes(UTF_8));
    }

    static String request(String message, int most) {
        return "{\"message\": \"" + message + "\", \"max_tokens\": " + most + ", \"seed\": 7, \"temperature\": 0.8}";
    }

    public static void main(String[] given) throws Exception {
        folder = given[0].getBytes(UTF_8);
        options = given[1].getBytes(UTF_8);
        System.load(given[2]);
        System.out.println(new String(Native.plan(folder, options), UTF_8));
        long pack = Native.open(folder, options);
        System.out.println(new String(Native.info(pack), UTF_8));
        long session = Native.session(pack, NONE);
        byte[] text = answer(session, given[3]);
        System.out.println(new String(Native.stats(session), UTF_8));
        System.out.println(Arrays.toString(text));
        refusals(pack);
        callbacks(pack);
        cancelling(pack);
        threads(pack);
        trimming(pack);
        closing();
        races();
        Native.closeSession(session);
        Native.close(pack);
        System.out.println("all held");
    }

    static void refusals(long pack) {
        System.out.println(thrown(IllegalStateException.class, () -> Native.open("/nowhere/\u00e9\ud83d\ude42".getBytes(UTF_8), options)));
        System.out.println(thrown(IllegalStateException.class, () -> Native.session(pack, "{\"a\": 1}".getBytes(UTF_8))));
        long session = Native.session(pack, NONE);
        System.out.println(thrown(IllegalArgumentException.class, () -> answer(session, "{\"max_tokens\": 3}")));
        System.out.println(thrown(IllegalArgumentException.class, () -> answer(session, "{\"message\": \"\0\"}")));
        thrown(IllegalArgumentException.class, () -> Native.open(null, NONE));
        thrown(IllegalArgumentException.class, () -> Native.generate(session, null, piece -> true));
        thrown(IllegalArgumentException.class, () -> Native.generate(session, NONE, null));
        require(answer(session, request("a\\u0000b", 4)).length > 0, "a character 0 in JSON");
        Native.closeSession(session);
    }

    static void callbacks(long pack) {
        long session = session(pack);
        byte[] whole = answer(session, request("Count to ten.", 30));
        Native.rewind(session, 0);
        RuntimeException own = new RuntimeException("of the app");
        AtomicInteger calls = new AtomicInteger();
        Predicate<byte[]> throwing = piece -> {
            if (calls.incrementAndGet() == 3) throw own;
            return true;
        };
        try {
            Native.generate(session, request("Count to ten.", 30).getBytes(UTF_8), throwing);
            throw new AssertionError("the exception did not arrive");
        } catch (RuntimeException error) {
            require(error == own && calls.get() == 3, "the app's own exception, at once: " + error);
        }
        thrown(StackOverflowError.class, () -> Native.generate(session, ENDLESS.getBytes(UTF_8), piece -> {
            throw new StackOverflowError();
        }));
        calls.set(0);
        int few = Native.generate(session, ENDLESS.getBytes(UTF_8), piece -> calls.incrementAndGet() < 2);
        require(few > 0 && few < 60 && calls.get() == 2, "a false ends the answer: " + few);
        Native.rewind(session, 0);
        long fresh = session(pack);  // the seed of the n-th answer does not matter: requests have their own
        require(Arrays.equals(whole, answer(session, request("Count to ten.", 30))), "a session goes on after exceptions");
        require(Arrays.equals(whole, answer(fresh, request("Count to ten.", 30))), "a session of its own");
        Native.generate(fresh, ENDLESS.getBytes(UTF_8), piece -> {
            try {
                Native.stats(fresh);
            } catch (IllegalStateException refused) {
                return false;
            }
            throw new AssertionError("a callback cannot ask for the running answer's counts");
        });
        Native.closeSession(session);
        Native.closeSession(fresh);
    }

    static void cancelling(long pack) throws Exception {
        long session = session(pack);
        Native.cancel(session);
        thrown(CancellationException.class, () -> answer(session, ENDLESS));
        require(answer(session, request("Hi.", 5)).length > 0, "only the next answer is cancelled");
        CountDownLatch begun = new CountDownLatch(1);
        Thread other = new Thread(() -> {
            try {
                begun.await();
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
            Native.cancel(session);
        });
        other.start();
        thrown(CancellationException.class, () -> Native.generate(session, ENDLESS.getBytes(UTF_8), piece -> {
            begun.countDown();
            return true;
        }));
        other.join();
        Native.closeSession(session);
    }

    static void threads(long pack) throws Exception {
        String[] requests = {request("Name a fruit.", 40), request("What is a duck?", 40)};
        byte[][] alone = new byte[2][], together = new byte[2][];
        Thread[] running = new Thread[2];
        for (int i = 0; i < 2; ++i) {
            long session = session(pack);
            alone[i] = answer(session, requests[i]);
            Native.closeSession(session);
        }
        for (int i = 0; i < 2; ++i) {
            int mine = i;
            running[i] = new Thread(() -> {
                long session = session(pack);
                together[mine] = answer(session, requests[mine]);
                Native.closeSession(session);
            });
            running[i].start();
        }
        for (Thread each : running) each.join();
        require(Arrays.deepEquals(alone, together), "two threads write what one does");
    }

    static void trimming(long pack) {
        long session = session(pack);
        byte[] before = answer(session, request("Name a river.", 30));
        Native.rewind(session, 0);
        long given = Native.trim(pack, 2);
        require(given > 0 && Native.trim(pack, 0) == 0, "memory comes back: " + given);
        require(Arrays.equals(before, answer(session, request("Name a river.", 30))), "the same text afterwards");
        Native.closeSession(session);
    }

    static void closing() throws Exception {
        for (boolean whole : new boolean[] {false, true}) {
            long pack = Native.open(folder, options), session = session(pack);
            CountDownLatch begun = new CountDownLatch(1);
            AtomicReference<Throwable> found = new AtomicReference<>();
            Thread running = new Thread(() -> {
                try {
                    Native.generate(session, ENDLESS.getBytes(UTF_8), piece -> {
                        begun.countDown();
                        return true;
                    });
                } catch (Throwable error) {
                    found.set(error);
                }
            });
            running.start();
            begun.await();
            if (whole) Native.close(pack);
            else Native.closeSession(session);
            running.join();
            require(found.get() instanceof CancellationException, "a closed session's answer: " + found.get());
            thrown(IllegalStateException.class, () -> answer(session, ENDLESS));
            Native.closeSession(session);
            Native.closeSession(session);
            Native.close(pack);
            Native.close(pack);
            thrown(IllegalStateException.class, () -> Native.info(pack));
        }
        long pack = Native.open(folder, options), session = session(pack);
        thrown(CancellationException.class, () -> Native.generate(session, ENDLESS.getBytes(UTF_8), piece -> {
            Native.closeSession(session);
            Native.close(pack);
            return true;
        }));
    }

    /** Calls at random moments of a session's life: each returns or throws. */
    static void races() throws Exception {
        for (int round = 0; round < 10; ++round) {
            long pack = Native.open(folder, options), session = session(pack);
            Call[] calls = {
                () -> answer(session, request("Name a city.", 40)), () -> answer(session, request("Name a sea.", 40)),
                () -> Native.stats(session), () -> Native.trim(pack, 2), () -> Native.info(pack),
            };
            Thread[] running = new Thread[calls.length];
            for (int i = 0; i < calls.length; ++i) {
                Call call = calls[i];
                running[i] = new Thread(() -> {
                    for (int turn = 0; turn < 20; ++turn) {
                        try {
                            call.run();
                        } catch (IllegalStateException closed) {
                            // an answer that was cancelled, or a call that came late
                        } catch (Exception error) {
                            throw new AssertionError(error);
                        }
                    }
                });
                running[i].start();
            }
            Thread.sleep(round * 8);
            if (round % 3 == 0) Native.cancel(session);
            if (round % 2 == 0) Native.closeSession(session);
            Native.close(pack);
            for (Thread each : running) each.join();
            Native.closeSession(session);
        }
    }
}
