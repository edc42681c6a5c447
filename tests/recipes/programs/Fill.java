import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Fills what the virtual machine says it may have: metaspace, direct memory, stacks and the heap. With an argument more. */
public final class Fill {
    private static final int THREADS = 16;
    private static final int PIECE = 64 << 10;
    private static final List<Object> HELD = new ArrayList<>();

    /** Defines its one class anew each time, as application servers do. */
    private static final class Loader extends ClassLoader {
        Class<?> define(byte[] code) {
            return defineClass(Fill.class.getName(), code, 0, code.length);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("metaspace: " + fillMetaspace());
        System.out.println("threads: " + fillStacks());
        System.out.println("direct memory: " + fillDirectMemory());
        if (arguments.length > 0) {
            while (true) {
                HELD.add(new byte[PIECE]);
            }
        }
        System.out.println("heap: " + fillHeap() + " of " + Runtime.getRuntime().maxMemory());
    }

    private static long fillMetaspace() throws Exception {
        byte[] code;
        try (InputStream file = Fill.class.getResourceAsStream("Fill.class")) {
            code = file.readAllBytes();
        }
        MemoryPoolMXBean pool = ManagementFactory.getMemoryPoolMXBeans().stream()
                .filter(candidate -> candidate.getName().equals("Metaspace")).findFirst().orElseThrow();
        // The pool's limit counts the space of compressed classes too, which is about an eighth.
        while (pool.getUsage().getCommitted() < pool.getUsage().getMax() * 3 / 4) {
            Class<?> defined = new Loader().define(code);
            HELD.add(defined.getDeclaredMethods());
        }
        return pool.getUsage().getCommitted();
    }

    private static int deep(int depth) {
        return depth == 0 ? 0 : 1 + deep(depth - 1);
    }

    private static int fillStacks() throws InterruptedException {
        CountDownLatch deepened = new CountDownLatch(THREADS);
        for (int i = 0; i < THREADS; i++) {
            Thread thread = new Thread(() -> {
                deep(5000);
                deepened.countDown();
                try {
                    Thread.sleep(1L << 40);
                } catch (InterruptedException end) {
                    return;
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        deepened.await();
        return THREADS;
    }

    private static long fillDirectMemory() {
        long filled = 0;
        try {
            for (; filled < Runtime.getRuntime().maxMemory(); filled += PIECE) {
                ByteBuffer piece = ByteBuffer.allocateDirect(PIECE);
                for (int at = 0; at < PIECE; at += 4096) {
                    piece.put(at, (byte) 1);
                }
                HELD.add(piece);
            }
        } catch (OutOfMemoryError full) {
            // Thrown by Java code, which ExitOnOutOfMemoryError does not see.
            return filled;
        }
        return filled;
    }

    private static long fillHeap() {
        Runtime runtime = Runtime.getRuntime();
        long filled = 0;
        while (runtime.totalMemory() - runtime.freeMemory() < runtime.maxMemory() / 100 * 94) {
            HELD.add(new byte[PIECE]);
            filled += PIECE;
        }
        return filled;
    }
}
