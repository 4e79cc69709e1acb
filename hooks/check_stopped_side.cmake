# Fails if an archive that runs in a stopped member needs the program's heap, stdio or the loader: a thread may have been
# stopped while it held their locks. libshadowib.so brings an operator new of its own, so NEW=allowed permits that one.
#
# LOADER=allowed is for the agent, which rehearses what it loads after a restart (agent/loader_thread.h).
#
# cmake -DNM=nm -DARCHIVE=lib.a -DNEW=allowed|refused -DLOADER=allowed|refused -P check_stopped_side.cmake
execute_process(COMMAND "${NM}" -u -A "${ARCHIVE}" OUTPUT_VARIABLE listing ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${ARCHIVE}")
endif()
set(refused "malloc|calloc|realloc|reallocarray|free|cfree|memalign|aligned_alloc|posix_memalign|strdup|strndup|asprintf|vasprintf"
  "__asprintf_chk|getline|getdelim|opendir|fdopendir|readdir|closedir|scandir"
  "fopen|fopen64|fdopen|freopen|fclose|fread|fwrite|fgets|fputs|fputc|puts|putchar|printf|fprintf|vprintf|vfprintf|__printf_chk"
  "__fprintf_chk|perror|fflush|popen|setlocale|_ZNSt8ios_base4InitC1Ev|_ZSt4c(out|err|log)|_ZNSt7__cxx1118basic_stringstream.*")
if(NOT NEW STREQUAL "allowed")
  list(APPEND refused "_Zn[wa].*|_Zd[la].*")
endif()
if(NOT LOADER STREQUAL "allowed")
  list(APPEND refused "dlopen|dlmopen|dlsym|dlclose|dl_iterate_phdr")
endif()
list(JOIN refused "|" pattern)
string(REGEX MATCHALL "[^\n]* U (${pattern})(@[^\n]*)?\n" found "${listing}\n")
if(found)
  list(JOIN found "  " lines)
  message(FATAL_ERROR "This archive runs while the program is stopped, and must not need the program's heap, stdio or the loader:\n  "
    "${lines}Use the arena (shadowib/base/arena.h), raw system calls (hooks/raw), or memory of the caller's.")
endif()
