/* Says when it started and when it last died, lives LIFE_MS milliseconds, then takes BYTES of memory.
 *
 *     restart_hog LOG STAMP LIFE_MS BYTES
 *
 * Each start appends "STARTED DIED\n" to LOG (CLOCK_MONOTONIC, nanoseconds). DIED is the last stamp of
 * the life before: while memory is touched, every page leaves one in the shared file STAMP, so that it
 * is at most one page older than the death. 0: there was no life before.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int count, char **words)
{
    uint64_t started = now();
    if (count != 5)
        return 2;
    int log = open(words[1], O_WRONLY | O_APPEND | O_CREAT, 0644);
    int file = open(words[2], O_RDWR | O_CREAT, 0644);
    if (log < 0 || file < 0 || ftruncate(file, 4096) != 0)
        return 3;
    volatile uint64_t *stamp = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (stamp == MAP_FAILED)
        return 4;
    dprintf(log, "%llu %llu\n", (unsigned long long)started, (unsigned long long)*stamp);

    /* Whoever supervises shares the limit: it is not to be the victim. */
    int adj = open("/proc/self/oom_score_adj", O_WRONLY);
    if (adj >= 0 && write(adj, "1000", 4) != 4)
        return 5;

    struct timespec life = {atoi(words[3]) / 1000, atoi(words[3]) % 1000 * 1000000L};
    nanosleep(&life, NULL);
    size_t size = strtoull(words[4], NULL, 10);
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 6;
    madvise(memory, size, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < size; page += 4096) {
        memory[page] = 1;
        *stamp = now();
    }
    return 0;
}
