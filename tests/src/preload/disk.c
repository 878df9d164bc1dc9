/* Preloaded into a node: its syncs are slow, hang or fail, as a control file says.
 *
 * A filter of the kernel's has fsync, fdatasync and syncfs raise a signal, by whichever library they are called. The
 * signal's handler reads the control file and does what it says; the sync itself passes the filter by a mark in an
 * argument that those calls do not have.
 *
 * MAINSTEM_TEST_DISK_CONTROL is the file. Its first line is "works", "slow MS", "hangs" or "fails"; the second one is the
 * directory under which that is so: other files are synced as ever. The first sync that hangs makes a file beside it, with
 * the ending ".hanging".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PASS 0x6d61696eUL

static char control[4096];

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&time, &time) == -1 && errno == EINTR) {
    }
}

/* What syncs of a file are to do. */
static void read_control(int of, char *text, size_t size) {
    char link[64], path[4096];
    int file = open(control, O_RDONLY | O_CLOEXEC);
    ssize_t count = file < 0 ? 0 : read(file, text, size - 1);
    if (file >= 0) {
        close(file);
    }
    text[count > 0 ? count : 0] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", of);
    count = readlink(link, path, sizeof path - 1);
    path[count > 0 ? count : 0] = 0;
    char *under = strchr(text, '\n');
    if (under == NULL || strncmp(path, under + 1, strlen(under + 1)) != 0) {
        text[0] = 0;
    }
}

/* Tells the test that a sync hangs. */
static void report_hanging(void) {
    char path[sizeof control + 16];
    snprintf(path, sizeof path, "%s.hanging", control);
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (file >= 0) {
        close(file);
    }
}

/* The result of a sync as the kernel gives it. */
static long sync_as_told(long number, long file) {
    char text[4096];
    read_control((int)file, text, sizeof text);
    if (strncmp(text, "hangs", 5) == 0) {
        report_hanging();
    }
    while (strncmp(text, "hangs", 5) == 0) {
        sleep_ms(5);
        read_control((int)file, text, sizeof text);
    }
    if (strncmp(text, "slow ", 5) == 0) {
        sleep_ms(strtol(text + 5, NULL, 10));
    }
    if (strncmp(text, "fails", 5) == 0) {
        return -EIO;
    }
    return syscall(number, file, PASS) == 0 ? 0 : -errno;
}

static void on_sync(int signal, siginfo_t *info, void *context) {
    (void)signal;
    ucontext_t *at = context;
    int before = errno;
#if defined(__x86_64__)
    at->uc_mcontext.gregs[REG_RAX] = sync_as_told(info->si_syscall, at->uc_mcontext.gregs[REG_RDI]);
#elif defined(__aarch64__)
    at->uc_mcontext.regs[0] = sync_as_told(info->si_syscall, at->uc_mcontext.regs[0]);
#else
#error "the registers of this processor are not known here"
#endif
    errno = before;
}

static void fail(const char *what) {
    fprintf(stderr, "the shim of the disk cannot work: %s: %s\n", what, strerror(errno));
    _exit(99);
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("MAINSTEM_TEST_DISK_CONTROL");
    if (file == NULL) {
        return;
    }
    snprintf(control, sizeof control, "%s", file);
    struct sigaction action = {0};
    action.sa_sigaction = on_sync;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;
    if (sigaction(SIGSYS, &action, NULL) != 0) {
        fail("sigaction");
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fsync, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fdatasync, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_syncfs, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PASS, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        fail("no new privileges");
    }
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        fail("seccomp");
    }
}
