/* busybox' shell, but `sh -c env` prints variables whose names are no identifiers, too: shells of busybox before 1.37
   drop them. */
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "-c") == 0 && strcmp(argv[2], "env") == 0)
        execl("/bin/busybox", "env", (char *)NULL);
    else
        execv("/bin/ash", argv);
    return 127;
}
