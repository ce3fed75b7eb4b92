/* console EVENT FILE PROGRAM ARGUMENT ..: starts a program in a console, once FILE exists sends all processes of the console an event (0: Ctrl-C,
   1: Ctrl-Break), and prints the exit code of the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static BOOL WINAPI ignore(DWORD event) { return TRUE; }

int main(int count, char **words) {
    STARTUPINFOA start = { sizeof start };
    PROCESS_INFORMATION process;
    char line[8192] = "";
    DWORD code;
    start.dwFlags = STARTF_USESTDHANDLES;
    start.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    start.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
    start.hStdError = GetStdHandle(STD_ERROR_HANDLE);
    /* A console of its own, without the shell that has started this program. Wine has only that of a terminal. */
    if (!GetProcAddress(GetModuleHandleA("ntdll.dll"), "wine_get_version")) {
        FreeConsole();
        if (!AllocConsole()) return fprintf(stderr, "no console: %lu\n", GetLastError()), 99;
    }
    for (int at = 3; at < count; at++) {
        strcat(line, "\"");
        strcat(line, words[at]);
        strcat(line, "\" ");
    }
    if (!CreateProcessA(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &process))
        return fprintf(stderr, "not started: %lu\n", GetLastError()), 99;
    SetConsoleCtrlHandler(ignore, TRUE);
    while (GetFileAttributesA(words[2]) == INVALID_FILE_ATTRIBUTES && WaitForSingleObject(process.hProcess, 50) == WAIT_TIMEOUT) {}
    if (!GenerateConsoleCtrlEvent(atoi(words[1]), 0)) fprintf(stderr, "no event: %lu\n", GetLastError());
    WaitForSingleObject(process.hProcess, 60000);
    GetExitCodeProcess(process.hProcess, &code);
    printf("exit code %lu\n", code);
    return code;
}
