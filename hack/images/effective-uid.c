/* Who a set-user-ID program runs as. */
#include <stdio.h>
#include <unistd.h>

int main(void) {
    printf("Effective uid: %u\n", (unsigned)geteuid());
    return 0;
}
