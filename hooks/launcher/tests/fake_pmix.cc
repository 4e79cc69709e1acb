#include "hooks/launcher/tests/fake_pmix.h"

#include <stdlib.h>
#include <string.h>

namespace {
FakePmix g_fake;
}

extern "C" {

PMIX_EXPORT FakePmix* fake_pmix(void) { return &g_fake; }

PMIX_EXPORT pmix_status_t PMIx_Init(pmix_proc_t* proc, pmix_info_t[], size_t) {
  memset(proc, 0, sizeof(*proc));
  strcpy(proc->nspace, "job.1");
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Finalize(const pmix_info_t[], size_t) {
  ++g_fake.calls;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Put(pmix_scope_t, const char[], pmix_value_t*) { return PMIX_SUCCESS; }
PMIX_EXPORT pmix_status_t PMIx_Commit(void) {
  ++g_fake.calls;
  __atomic_add_fetch(&g_fake.commits_entered, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&g_fake.commit_waits, __ATOMIC_SEQ_CST)) {
  }
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Get(const pmix_proc_t*, const char key[], const pmix_info_t[], size_t,
                                   pmix_value_t** value) {
  const bool is_directory =
      strcmp(key, PMIX_TMPDIR) == 0 || strcmp(key, PMIX_NSDIR) == 0 || strcmp(key, PMIX_PROCDIR) == 0;
  if (strcmp(key, PMIX_JOB_SIZE) != 0 && (!is_directory || g_fake.session[0] == '\0')) return PMIX_ERR_NOT_FOUND;
  *value = static_cast<pmix_value_t*>(calloc(1, sizeof(pmix_value_t)));
  if (is_directory) {
    (*value)->type = PMIX_STRING;
    const char* const below = strcmp(key, PMIX_PROCDIR) == 0 ? "/1/0" : strcmp(key, PMIX_TMPDIR) == 0 ? "/.." : "";
    (*value)->data.string = static_cast<char*>(malloc(strlen(g_fake.session) + strlen(below) + 1));
    strcat(strcpy((*value)->data.string, g_fake.session), below);
    return PMIX_SUCCESS;
  }
  (*value)->type = PMIX_UINT32;
  (*value)->data.uint32 = 2;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Get_nb(const pmix_proc_t*, const char[], const pmix_info_t[], size_t,
                                      pmix_value_cbfunc_t callback, void* data) {
  ++g_fake.calls;
  g_fake.get = callback;
  g_fake.get_data = data;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Fence_nb(const pmix_proc_t[], size_t, const pmix_info_t[], size_t,
                                        pmix_op_cbfunc_t callback, void* data) {
  ++g_fake.calls;
  g_fake.fence = callback;
  g_fake.fence_data = data;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Register_event_handler(pmix_status_t[], size_t, pmix_info_t[], size_t,
                                                      pmix_notification_fn_t, pmix_hdlr_reg_cbfunc_t callback,
                                                      void* data) {
  ++g_fake.calls;
  g_fake.registration = callback;
  g_fake.registration_data = data;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Job_control_nb(const pmix_proc_t[], size_t, const pmix_info_t[], size_t,
                                              pmix_info_cbfunc_t callback, void* data) {
  ++g_fake.calls;
  g_fake.control = callback;
  g_fake.control_data = data;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Lookup_nb(char**, const pmix_info_t[], size_t, pmix_lookup_cbfunc_t callback,
                                         void* data) {
  ++g_fake.calls;
  g_fake.lookup = callback;
  g_fake.lookup_data = data;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Value_xfer(pmix_value_t* to, const pmix_value_t* from) {
  *to = *from;
  if (from->type == PMIX_STRING) to->data.string = strdup(from->data.string);
  return PMIX_SUCCESS;
}
PMIX_EXPORT void PMIx_Value_destruct(pmix_value_t* value) {
  if (value->type == PMIX_STRING) free(value->data.string);
  if (value->type == PMIX_BYTE_OBJECT) free(value->data.bo.bytes);
}
}
