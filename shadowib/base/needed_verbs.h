// The functions of a system's libibverbs that the shim cannot do without. Others it asks for, and answers EOPNOTSUPP
// to a program that calls one which the library lacks.
#pragma once

#include <dlfcn.h>

#include <string>

namespace shadowib {

// The names of those that `library`, a handle of dlopen, lacks, separated by commas; empty: it has all. Any thread.
inline std::string missing_verbs(void* library) {
  static constexpr const char* kNeeded[] = {
      "ack_async_event", "ack_cq_events",   "alloc_pd",         "close_device",    "create_comp_channel",
      "create_cq",       "create_qp",       "dealloc_pd",       "dereg_mr",        "destroy_comp_channel",
      "destroy_cq",      "destroy_qp",      "free_device_list", "get_async_event", "get_cq_event",
      "get_device_guid", "get_device_list", "get_device_name",  "modify_qp",       "open_device",
      "query_device",    "query_gid",       "query_pkey",       "query_port",      "query_qp",
      "reg_mr_iova2",
  };
  // Those that go with a function that a library may lack.
  static constexpr const char* kTogether[][2] = {
      {"create_ah", "destroy_ah"},
      {"create_srq", "destroy_srq"},
      {"create_srq", "modify_srq"},
      {"create_srq", "query_srq"},
  };
  std::string missing;
  const auto has = [library](const char* name) {
    return ::dlsym(library, (std::string("ibv_") + name).c_str()) != nullptr;
  };
  const auto need = [&](const char* name) {
    if (!has(name)) missing += (missing.empty() ? "ibv_" : ", ibv_") + std::string(name);
  };
  for (const char* name : kNeeded) need(name);
  for (const auto& [first, second] : kTogether)
    if (has(first)) need(second);
  return missing;
}

}  // namespace shadowib
