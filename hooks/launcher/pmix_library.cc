#include "hooks/launcher/pmix_library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace shadowib {
namespace {

constexpr char kLibrary[] = "libpmix.so.2";

PmixLibrary g_library;
std::atomic<bool> g_found{false};

bool is_text(pmix_data_type_t type) { return type == PMIX_STRING; }
bool is_bytes(pmix_data_type_t type) {
  return type == PMIX_BYTE_OBJECT || type == PMIX_COMPRESSED_BYTE_OBJECT || type == PMIX_COMPRESSED_STRING;
}
// Whole in the union.
bool is_plain(pmix_data_type_t type) {
  switch (type) {
    case PMIX_BOOL:
    case PMIX_BYTE:
    case PMIX_SIZE:
    case PMIX_PID:
    case PMIX_INT:
    case PMIX_INT8:
    case PMIX_INT16:
    case PMIX_INT32:
    case PMIX_INT64:
    case PMIX_UINT:
    case PMIX_UINT8:
    case PMIX_UINT16:
    case PMIX_UINT32:
    case PMIX_UINT64:
    case PMIX_FLOAT:
    case PMIX_DOUBLE:
    case PMIX_TIMEVAL:
    case PMIX_TIME:
    case PMIX_STATUS:
    case PMIX_PROC_RANK:
      return true;
    default:
      return false;
  }
}

}  // namespace

const PmixLibrary* pmix_library() {
  if (g_found.load(std::memory_order_acquire)) return &g_library;
  void* const handle = ::dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle == nullptr) return nullptr;
    // Several threads find the same.
#define SHADOWIB_PMIX_FUNCTION(name) \
  g_library.name = reinterpret_cast<decltype(g_library.name)>(::dlsym(handle, "PMIx_" #name));
#include "hooks/launcher/pmix_functions.def"
#undef SHADOWIB_PMIX_FUNCTION
  g_found.store(true, std::memory_order_release);
  return &g_library;
}

bool store_value(const pmix_value_t& value, StoredValue* stored) {
  stored->type = value.type;
  stored->bytes.clear();
  if (is_text(value.type)) {
    if (value.data.string != nullptr) stored->bytes = value.data.string;
  } else if (is_bytes(value.type)) {
    if (value.data.bo.bytes != nullptr) stored->bytes.assign(value.data.bo.bytes, value.data.bo.size);
  } else if (is_plain(value.type)) {
    stored->bytes.assign(reinterpret_cast<const char*>(&value.data), sizeof(value.data));
  } else {
    return false;
  }
  return true;
}

pmix_value_t* load_value(const StoredValue& stored) {
  if (is_plain(stored.type) ? stored.bytes.size() != sizeof(pmix_value_t::data)
                            : !is_text(stored.type) && !is_bytes(stored.type))
    return nullptr;
  auto* const value = static_cast<pmix_value_t*>(std::calloc(1, sizeof(pmix_value_t)));
  if (value == nullptr) return nullptr;
  value->type = stored.type;
  if (is_plain(stored.type)) {
    std::memcpy(&value->data, stored.bytes.data(), sizeof(value->data));
    return value;
  }
  auto* const bytes = static_cast<char*>(std::malloc(stored.bytes.size() + 1));
  if (bytes == nullptr) {
    std::free(value);
    return nullptr;
  }
  std::memcpy(bytes, stored.bytes.c_str(), stored.bytes.size() + 1);
  if (is_text(stored.type)) {
    value->data.string = bytes;
  } else {
    value->data.bo.bytes = bytes;
    value->data.bo.size = stored.bytes.size();
  }
  return value;
}

pmix_value_t* copy_value(const PmixLibrary& library, const pmix_value_t& value) {
  auto* const copy = static_cast<pmix_value_t*>(std::calloc(1, sizeof(pmix_value_t)));
  if (copy != nullptr && library.Value_xfer(copy, &value) == PMIX_SUCCESS) return copy;
  std::free(copy);
  return nullptr;
}

void free_value(const PmixLibrary& library, pmix_value_t* value) {
  if (value == nullptr) return;
  if (library.Value_destruct != nullptr) library.Value_destruct(value);
  std::free(value);
}

bool is_asked_for(const pmix_info_t* info, std::size_t ninfo, const char* attribute) {
  for (std::size_t i = 0; i < ninfo; ++i)
    if (std::strncmp(info[i].key, attribute, sizeof(info[i].key)) == 0)
      return info[i].value.type == PMIX_UNDEF || info[i].value.data.flag;
  return false;
}

pmix_status_t get_locally(const PmixLibrary& library, const pmix_proc_t* proc, const char* key,
                          const pmix_info_t* info, std::size_t ninfo, pmix_value_t** value) {
  if (is_asked_for(info, ninfo, PMIX_OPTIONAL)) return library.Get(proc, key, info, ninfo, value);
  auto* const more = static_cast<pmix_info_t*>(std::calloc(ninfo + 1, sizeof(pmix_info_t)));
  if (more == nullptr) return PMIX_ERR_NOMEM;
  if (ninfo > 0) std::memcpy(more, info, ninfo * sizeof(*info));
  std::strcpy(more[ninfo].key, PMIX_OPTIONAL);
  more[ninfo].value.type = PMIX_BOOL;
  more[ninfo].value.data.flag = true;
  const pmix_status_t status = library.Get(proc, key, more, ninfo + 1, value);
  std::free(more);  // what it points to is the caller's
  return status;
}

}  // namespace shadowib
