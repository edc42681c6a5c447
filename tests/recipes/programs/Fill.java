import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Fills what the virtual machine says it may have: the heap, direct memory, and the stacks of threads. */
public final class Fill {
    private static final int THREADS = 32;
    private static final int PIECE = 64 << 10;

    private static int deep(int depth) {
        return depth == 0 ? 0 : 1 + deep(depth - 1);
    }

    public static void main(String[] arguments) throws Exception {
        Runtime runtime = Runtime.getRuntime();
        List<Object> held = new ArrayList<>();
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
        long direct = 0;
        try {
            for (; direct < runtime.maxMemory(); direct += PIECE) {
                ByteBuffer piece = ByteBuffer.allocateDirect(PIECE);
                for (int at = 0; at < PIECE; at += 4096) {
                    piece.put(at, (byte) 1);
                }
                held.add(piece);
            }
        } catch (OutOfMemoryError full) {
            System.out.println("direct memory is full with " + direct);
        }
        long heap = 0;
        while (runtime.totalMemory() - runtime.freeMemory() < runtime.maxMemory() * 9 / 10) {
            held.add(new byte[PIECE]);
            heap += PIECE;
            if (heap > runtime.maxMemory()) {
                break;
            }
        }
        System.out.println("filled: heap " + heap + " of " + runtime.maxMemory() + ", pieces " + held.size()
                + ", uptime " + ManagementFactory.getRuntimeMXBean().getUptime() + " ms");
    }
}
