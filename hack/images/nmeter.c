/* The time of day with milliseconds, again and again, as `nmeter -d0 %3t` of newer busyboxes prints it. */
#include <stdio.h>
#include <time.h>

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        struct tm *utc = gmtime(&now.tv_sec);
        int written = printf("%02d:%02d:%02d.%03ld\n", utc->tm_hour, utc->tm_min, utc->tm_sec, now.tv_nsec / 1000000);
        if (written < 0 || fflush(stdout) != 0)
            return 0;
    }
}
