/* The loop that people write: map a chunk, write to all of it, again, until near the limit.

   probe_loop UP_TO_BYTES CHUNK_BYTES; a line after each chunk: bytes touched, seconds taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    size_t up_to = strtoull(argv[1], NULL, 10), chunk = strtoull(argv[2], NULL, 10), touched = 0;
    double started = now();
    while (touched + chunk <= up_to) {
        void *memory = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            break;
        memset(memory, 1, chunk);
        touched += chunk;
        printf("%zu %.6f\n", touched, now() - started);
        fflush(stdout);
    }
    return 0;
}
