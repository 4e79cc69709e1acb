#include "ib2tcp/transports/ofi_library.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdlib.h>

#include <cstring>
#include <vector>

#include "ib2tcp/host.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/transports/ofi_fabric.h"
#include "shadowib/base/networks.h"

namespace shadowib::ib2tcp {
namespace {

OfiLibrary g_library;
bool g_loaded = false;

constexpr char kFile[] = "libfabric.so.1";
constexpr std::uint32_t kApi = FI_VERSION(1, 14);

// The versions of these functions that have the structures of its header since 1.9; a newer library keeps them.
template <typename F>
bool find(void* library, F& function, const char* name, const char* version) {
  function = reinterpret_cast<F>(::dlvsym(library, name, version));
  if (function == nullptr) log_message(LogLevel::kError, "%s has no %s@%s", kFile, name, version);
  return function != nullptr;
}

// In the environment of this link namespace; the program's own is another. What a site has set stays. All providers
// start up, since a restart may name another one.
void set_up_environment() {
  ::setenv("IPATH_NO_BACKTRACE", "1", 1);          // libinfinipath: no signal handlers
  ::setenv("FI_MR_CACHE_MONITOR", "disabled", 0);  // which would patch libc's code
  ::setenv("FI_OFI_RXM_MSG_RX_SIZE", "16", 0);     // 17 MiB in all instead of 69, and an image has them too
}

// `source`: an address of this host to listen at, or nullptr.
fi_info* ask(const char* provider, fi_ep_type type, const char* source) {
  fi_info* hints = g_library.dupinfo(nullptr);
  if (hints == nullptr) return nullptr;
  hints->fabric_attr->prov_name = ::strdup(provider);
  hints->caps = FI_MSG;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = type;
  hints->domain_attr->mr_mode = FI_MR_LOCAL;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  // No thread of its own: the program's polls and the helper drive it.
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
  fi_info* info = nullptr;
  const int rc = g_library.getinfo(kApi, source, nullptr, source != nullptr ? FI_SOURCE : 0, hints, &info);
  g_library.freeinfo(hints);
  if (rc != 0) return nullptr;
  if (info->ep_attr->max_msg_size >= kOfiMessageBytes && info->src_addrlen <= kMaxFabricName) return info;
  g_library.freeinfo(info);
  return nullptr;
}

fi_info* ask_both(const char* provider, const char* source) {
  fi_info* info = ask(provider, FI_EP_MSG, source);
  return info != nullptr ? info : ask(provider, FI_EP_RDM, source);
}

// At an address of the network that was chosen, if one was.
fi_info* ask_on_network(const char* provider) {
  const char* network = g_host->config("SHADOWIB_IB2TCP_NETWORK");
  if (network == nullptr || *network == '\0' || std::strcmp(network, "any") == 0) return ask_both(provider, nullptr);
  std::vector<HostAddress> chosen;
  {
    UnownedDescriptors unowned;
    (void)choose_addresses(network, &chosen);  // a wrong one is told when addresses are taken
  }
  for (const HostAddress& address : chosen)
    if (fi_info* info = ask_both(provider, text_of(address.address).c_str())) return info;
  fi_info* info = ask_both(provider, nullptr);
  if (info != nullptr)
    log_message(
        LogLevel::kWarn,
        "SHADOWIB_IB2TCP_TRANSPORT=ofi:%s chooses its own network; SHADOWIB_IB2TCP_NETWORK=%s is for the first "
        "words of a connection only",
        provider, network);
  return info;
}

}  // namespace

int load_ofi(const char* provider) {
  if (*provider == '\0' || std::strlen(provider) >= kMaxProviderName) {
    log_message(LogLevel::kError, "SHADOWIB_IB2TCP_TRANSPORT=ofi:%s: name a provider, such as ofi:tcp", provider);
    return EINVAL;
  }
  set_up_thread();
  set_up_environment();
  void* library = g_host->open_library != nullptr ? g_host->open_library(kFile) : nullptr;
  if (library == nullptr) {
    log_message(
        LogLevel::kError,
        "SHADOWIB_IB2TCP_TRANSPORT=ofi:%s needs %s, which cannot be loaded; install it (Debian: libfabric1) or use "
        "auto, shm or tcp",
        provider, kFile);
    return ENOENT;
  }
  if (!find(library, g_library.getinfo, "fi_getinfo", "FABRIC_1.3") ||
      !find(library, g_library.freeinfo, "fi_freeinfo", "FABRIC_1.3") ||
      !find(library, g_library.dupinfo, "fi_dupinfo", "FABRIC_1.3") ||
      !find(library, g_library.fabric, "fi_fabric", "FABRIC_1.1") ||
      !find(library, g_library.strerror, "fi_strerror", "FABRIC_1.0"))
    return ENOENT;
  g_library.info = ask_on_network(provider);
  if (g_library.info == nullptr) {
    log_message(
        LogLevel::kError,
        "SHADOWIB_IB2TCP_TRANSPORT=ofi:%s: libfabric offers no such provider here that has reliable messages of %zu "
        "bytes and needs no thread of its own; see fi_info -l",
        provider, kOfiMessageBytes);
    return ENODEV;
  }
  g_host->open_library(kFile);  // once more: what the provider has brought
  g_loaded = true;
  return 0;
}

const OfiLibrary* ofi_library() { return g_loaded ? &g_library : nullptr; }

void set_up_thread() {
  if (__builtin_expect(*::__ctype_b_loc() == nullptr, 0)) ::uselocale(LC_GLOBAL_LOCALE);
}

const char* ofi_provider(const char* transport) {
  return transport != nullptr && std::strncmp(transport, "ofi:", 4) == 0 ? transport + 4 : nullptr;
}

}  // namespace shadowib::ib2tcp
