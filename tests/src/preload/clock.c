/* Preloaded into a node: its wall clock is ahead by MAINSTEM_TEST_CLOCK_AHEAD_S seconds. What measures durations is not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int (*machine_gettime)(clockid_t, struct timespec *);
static time_t ahead;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("MAINSTEM_TEST_CLOCK_AHEAD_S");
    machine_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    ahead = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!machine_gettime) {
        begin();
    }
    int result = machine_gettime(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        time->tv_sec += ahead;
    }
    return result;
}
