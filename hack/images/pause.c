/* The process that holds a pod's namespaces open: it waits for its end and buries orphans. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) {
    (void)signal;
    _exit(0);
}

static void bury(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction on_end = {.sa_handler = leave};
    struct sigaction on_child = {.sa_handler = bury, .sa_flags = SA_NOCLDSTOP};
    if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) ||
        sigaction(SIGCHLD, &on_child, NULL)) {
        return EXIT_FAILURE;
    }
    for (;;) {
        pause();
    }
}
