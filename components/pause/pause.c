/* The process that holds a pod's namespaces: it waits, reaps what is left to it, and ends when told. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_end(int number) {
	psignal(number, "pause: ending");
	_exit(0);
}

static void on_child(int number) {
	(void)number;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

static int handle(int number, void (*handler)(int), int flags) {
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	action.sa_flags = flags;
	return sigaction(number, &action, NULL);
}

int main(int argc, char **argv) {
	if (argc > 1 && strcmp(argv[1], "-v") == 0) {
		puts("pause " VERSION);
		return 0;
	}
	if (handle(SIGINT, on_end, 0) < 0 || handle(SIGTERM, on_end, 0) < 0 || handle(SIGCHLD, on_child, SA_NOCLDSTOP) < 0) {
		perror("pause: sigaction");
		return 1;
	}
	for (;;) {
		pause();
	}
}
