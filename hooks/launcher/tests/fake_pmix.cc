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
// Of its own name it tells at once, and needs no launcher.
PMIX_EXPORT pmix_status_t PMIx_Get_nb(const pmix_proc_t*, const char key[], const pmix_info_t[], size_t,
                                      pmix_value_cbfunc_t callback, void* data) {
  if (strcmp(key, PMIX_PROCID) == 0) return callback(PMIX_SUCCESS, nullptr, data), PMIX_SUCCESS;
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
PMIX_EXPORT pmix_status_t PMIx_Deregister_event_handler(size_t number, pmix_op_cbfunc_t callback, void* data) {
  g_fake.deregistered = (int)number + 1;
  if (callback != nullptr) callback(PMIX_SUCCESS, data);
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Notify_event(pmix_status_t status, const pmix_proc_t* source, pmix_data_range_t range,
                                            const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t, void*) {
  if (range != PMIX_RANGE_PROC_LOCAL) return ++g_fake.calls, PMIX_SUCCESS;
  g_fake.notified_status = status;
  g_fake.notified_rank = source->rank;
  g_fake.notified_infos = (int)ninfo;
  g_fake.notified_text[0] = '\0';
  if (ninfo > 0) strncpy(g_fake.notified_text, info[0].value.data.string, sizeof(g_fake.notified_text) - 1);
  __atomic_add_fetch(&g_fake.notified, 1, __ATOMIC_SEQ_CST);
  return PMIX_SUCCESS;
}
// Infos of texts, and of one thing that it cannot pack.
PMIX_EXPORT pmix_status_t PMIx_Data_pack(const pmix_proc_t*, pmix_data_buffer_t* buffer, void* source, int32_t count,
                                         pmix_data_type_t) {
  const pmix_info_t* info = static_cast<pmix_info_t*>(source);
  for (int32_t i = 0; i < count; ++i) {
    if (info[i].value.type != PMIX_STRING) return PMIX_ERR_UNKNOWN_DATA_TYPE;
    const size_t more = sizeof(info->key) + strlen(info[i].value.data.string) + 1;
    buffer->base_ptr = static_cast<char*>(realloc(buffer->base_ptr, buffer->bytes_used + more));
    memcpy(buffer->base_ptr + buffer->bytes_used, info[i].key, sizeof(info->key));
    strcpy(buffer->base_ptr + buffer->bytes_used + sizeof(info->key), info[i].value.data.string);
    buffer->bytes_used += more;
  }
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Data_unpack(const pmix_proc_t*, pmix_data_buffer_t* buffer, void* to, int32_t* count,
                                           pmix_data_type_t) {
  pmix_info_t* info = static_cast<pmix_info_t*>(to);
  for (int32_t i = 0; i < *count; ++i) {
    if (buffer->unpack_ptr + sizeof(info->key) >= buffer->base_ptr + buffer->bytes_used)
      return PMIX_ERR_UNPACK_READ_PAST_END_OF_BUFFER;
    memcpy(info[i].key, buffer->unpack_ptr, sizeof(info->key));
    info[i].value.type = PMIX_STRING;
    info[i].value.data.string = strdup(buffer->unpack_ptr + sizeof(info->key));
    buffer->unpack_ptr += sizeof(info->key) + strlen(info[i].value.data.string) + 1;
  }
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
PMIX_EXPORT pmix_status_t PMIx_Disconnect_nb(const pmix_proc_t[], size_t, const pmix_info_t[], size_t,
                                             pmix_op_cbfunc_t callback, void* data) {
  ++g_fake.calls;
  g_fake.disconnect = callback;
  g_fake.disconnect_data = data;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Publish(const pmix_info_t[], size_t) {
  ++g_fake.calls;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Lookup(pmix_pdata_t[], size_t, const pmix_info_t[], size_t) {
  ++g_fake.calls;
  return g_fake.looked_up;
}
PMIX_EXPORT pmix_status_t PMIx_Unpublish(char**, const pmix_info_t[], size_t) {
  ++g_fake.calls;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Connect(const pmix_proc_t[], size_t, const pmix_info_t[], size_t) {
  ++g_fake.calls;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Connect_nb(const pmix_proc_t[], size_t, const pmix_info_t[], size_t,
                                          pmix_op_cbfunc_t callback, void* data) {
  ++g_fake.calls;
  g_fake.connect = callback;
  g_fake.connect_data = data;
  return PMIX_SUCCESS;
}
// May enlarge the environments, as the real one.
PMIX_EXPORT pmix_status_t PMIx_Spawn(const pmix_info_t[], size_t, const pmix_app_t apps[], size_t, pmix_nspace_t) {
  ++g_fake.calls;
  auto* const app = const_cast<pmix_app_t*>(apps);
  size_t count = 0;
  g_fake.spawned_environment[0] = '\0';
  for (; app->env != nullptr && app->env[count] != nullptr; ++count)
    strcat(strcat(g_fake.spawned_environment, app->env[count]), "\n");
  app->env = static_cast<char**>(realloc(app->env, (count + 2) * sizeof(char*)));
  app->env[count] = strdup("ADDED=1");
  app->env[count + 1] = nullptr;
  return PMIX_SUCCESS;
}
PMIX_EXPORT pmix_status_t PMIx_Spawn_nb(const pmix_info_t info[], size_t ninfo, const pmix_app_t apps[], size_t napps,
                                        pmix_spawn_cbfunc_t callback, void* data) {
  g_fake.spawn = callback;
  g_fake.spawn_data = data;
  return PMIx_Spawn(info, ninfo, apps, napps, nullptr);
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
