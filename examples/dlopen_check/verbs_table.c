#include "verbs_table.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* find(void* library, const char* name, const char* version) {
  void* symbol = dlvsym(library, name, version);
  if (symbol == NULL) {
    fprintf(stderr, "dlopen_check: %s@%s: %s\n", name, version, dlerror());
    exit(1);
  }
  return symbol;
}

const char* load_verbs(struct verbs_table* verbs) {
  void* library = dlopen("libibverbs.so", RTLD_NOW);
  if (library == NULL) library = dlopen("libibverbs.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "dlopen_check: %s\n", dlerror());
    exit(1);
  }
#define X(name, version) *(void**)&verbs->name = find(library, "ibv_" #name, version);
  VERBS(X)
#undef X
  *(void**)&verbs->query_port = find(library, "ibv_query_port", "IBVERBS_1.1");
  *(void**)&verbs->reg_mr = find(library, "ibv_reg_mr", "IBVERBS_1.1");
  Dl_info info;
  return dladdr(*(void**)&verbs->open_device, &info) ? info.dli_fname : "?";
}
