/* Devices, contexts, and what all of it needs. */
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake.h"

#if FAKE_EXTENDED
typedef struct {
  FakeEvents events;
  char private_part[FAKE_PRIVATE];
  struct verbs_context verbs; /* grows at its beginning */
} FakeContext;
#define CONTEXT_OF(fake) (&(fake)->verbs.context)
#define FAKE_OF(plain) ((FakeContext*)((char*)(plain)-offsetof(FakeContext, verbs.context)))
#else
typedef struct {
  struct ibv_context context;
  char private_part[FAKE_PRIVATE];
  FakeEvents events;
} FakeContext;
#define CONTEXT_OF(fake) (&(fake)->context)
#define FAKE_OF(plain) ((FakeContext*)(plain))
#endif

static struct {
  struct ibv_device device;
  char private_part[FAKE_PRIVATE];
} g_devices[2];

/* --- for all files */

static const char* directory(void) {
  static const char* found;
  if (found == NULL) found = getenv("FAKE_VERBS_DIR");
  return found;
}

int fake_is_marked(const char* how) {
  char path[512];
  if (directory() == NULL) return 0;
  snprintf(path, sizeof(path), "%s/" FAKE_NAME ".%s", directory(), how);
  return access(path, F_OK) == 0;
}

void fake_enter(const char* function) {
  char text[128];
  if (!fake_is_marked("forbidden")) return;
  const int bytes = snprintf(text, sizeof(text), FAKE_NAME ": %s is called, which nobody may any more\n", function);
  (void)!write(2, text, (size_t)bytes);
  abort();
}

void fake_tell(const char* format, ...) {
  char path[512], text[128];
  if (directory() == NULL) return;
  snprintf(path, sizeof(path), "%s/" FAKE_NAME ".calls", directory());
  va_list arguments;
  va_start(arguments, format);
  const int bytes = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return;
  (void)!write(fd, text, (size_t)bytes);
  close(fd);
}

/* Takes as long as there is a DIR/NAME.slow, and tells that it has begun. */
__attribute__((destructor)) static void end(void) {
  char ending[512];
  if (directory() == NULL) return;
  snprintf(ending, sizeof(ending), "%s/" FAKE_NAME ".ending", directory());
  while (fake_is_marked("slow")) {
    close(open(ending, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    usleep(1000);
  }
}

static atomic_flag g_lock = ATOMIC_FLAG_INIT;
void fake_lock(void) {
  while (atomic_flag_test_and_set(&g_lock)) usleep(10);
}
void fake_unlock(void) { atomic_flag_clear(&g_lock); }

int fake_most_entries(void) {
  char path[512];
  int most = INT_MAX;
  if (directory() == NULL) return most;
  snprintf(path, sizeof(path), "%s/" FAKE_NAME ".entries", directory());
  FILE* file = fopen(path, "r");
  if (file == NULL) return most;
  if (fscanf(file, "%d", &most) != 1) abort();
  fclose(file);
  return most;
}

uint32_t fake_number(uint32_t* made) { return 0x10 + ((*made)++ % kFakeMost ^ FAKE_FLIP); }

void fake_push_event(FakeEvents* events, int fd, const struct ibv_async_event* event) {
  events->first[events->tail++ % 256] = *event;
  const uint64_t one = 1;
  (void)!write(fd, &one, sizeof(one));
}

int fake_pop_event(FakeEvents* events, int fd, struct ibv_async_event* event) {
  uint64_t one;
  if (read(fd, &one, sizeof(one)) != sizeof(one)) return -1;
  fake_lock();
  *event = events->first[events->head++ % 256];
  fake_unlock();
  return 0;
}

FakeEvents* fake_async_events(struct ibv_context* context) { return &FAKE_OF(context)->events; }

/* --- devices */

struct ibv_device** ibv_get_device_list(int* count) {
  ENTER();
  /* A provider is loaded by the first who asks, and stays: so the library is never unloaded. */
  static void* provider;
  Dl_info self;
  if (provider == NULL && dladdr(&g_devices, &self) != 0) provider = dlopen(self.dli_fname, RTLD_NOW);
  struct ibv_device** list = calloc(FAKE_DEVICES + 1, sizeof(*list));
  for (int i = 0; i < FAKE_DEVICES; ++i) {
    struct ibv_device* device = list[i] = &g_devices[i].device;
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    snprintf(device->name, sizeof(device->name), FAKE_NAME "%d", i ^ FAKE_FLIP);
    snprintf(device->dev_name, sizeof(device->dev_name), "uverbs%d", i);
  }
  if (count != NULL) *count = FAKE_DEVICES;
  return list;
}

void ibv_free_device_list(struct ibv_device** list) {
  ENTER();
  free(list);
}

const char* ibv_get_device_name(struct ibv_device* device) {
  ENTER();
  return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device* device) {
  ENTER();
  const uint64_t number = device == &g_devices[0].device;
  return FAKE_LID | number << 56;
}

int ibv_get_device_index(struct ibv_device* device) {
  ENTER();
  return device == &g_devices[0].device ? 1 : 2;
}

/* The whole struct for who knows it, for the others as much as libibverbs 1.1 had. */
static int query_port_to(struct ibv_context* context, uint8_t port, struct ibv_port_attr* attr, size_t bytes) {
  if (port != 1) return EINVAL;
  struct ibv_port_attr all = {.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096};
  all.gid_tbl_len = FAKE_GIDS;
  all.pkey_tbl_len = FAKE_PARTITIONS;
  all.max_msg_sz = 1u << 30;
  all.lid = (uint16_t)(FAKE_LID + (context->device == &g_devices[1].device));
  all.sm_lid = FAKE_LID;
  all.phys_state = 5;
  all.active_width = 2;
  all.active_speed = 32;
  all.link_layer = IBV_LINK_LAYER_INFINIBAND;
  memcpy(attr, &all, bytes < sizeof(all) ? bytes : sizeof(all));
  return 0;
}

int ibv_query_port(struct ibv_context* context, uint8_t port, struct _compat_ibv_port_attr* attr) {
  ENTER();
  return query_port_to(context, port, (struct ibv_port_attr*)attr, 48);
}

#if FAKE_EXTENDED
static int query_port_slot(struct ibv_context* context, uint8_t port, struct ibv_port_attr* attr, size_t bytes) {
  ENTER();
  return query_port_to(context, port, attr, bytes);
}
#endif

struct ibv_context* ibv_open_device(struct ibv_device* device) {
  ENTER();
  if (fake_is_marked("unopenable")) {
    errno = EBUSY;
    return NULL;
  }
  FakeContext* fake = calloc(1, sizeof(*fake));
  struct ibv_context* context = CONTEXT_OF(fake);
  context->device = device;
  context->cmd_fd = eventfd(0, EFD_CLOEXEC);
  context->async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  context->num_comp_vectors = 1;
  context->ops.poll_cq = fake_poll_cq;
  context->ops.req_notify_cq = fake_req_notify_cq;
  context->ops.post_send = fake_post_send;
  context->ops.post_recv = fake_post_recv;
#if FAKE_EXTENDED
  context->abi_compat = __VERBS_ABI_IS_EXTENDED;
  fake->verbs.sz = sizeof(struct verbs_context);
  fake->verbs.query_port = query_port_slot;
#endif
  fake_tell("context of %s\n", device->name);
  return context;
}

int ibv_close_device(struct ibv_context* context) {
  ENTER();
  close(context->cmd_fd);
  close(context->async_fd);
  free(FAKE_OF(context));
  return 0;
}

int ibv_query_device(struct ibv_context* context, struct ibv_device_attr* attr) {
  ENTER();
  memset(attr, 0, sizeof(*attr));
  strcpy(attr->fw_ver, FAKE_NAME);
  attr->node_guid = attr->sys_image_guid = ibv_get_device_guid(context->device);
  attr->max_mr_size = ~0ull;
  attr->page_size_cap = 4096;
  attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = kFakeMost;
  attr->max_qp_wr = attr->max_cqe = 1 << 16;
  attr->max_sge = kFakeSges;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = FAKE_READS;
  attr->max_pkeys = FAKE_PARTITIONS;
  attr->phys_port_cnt = 1;
  if (!fake_is_marked("one_way")) attr->device_cap_flags = IBV_DEVICE_AUTO_PATH_MIG;
  return 0;
}

static union ibv_gid gid_at(struct ibv_context* context, int index) {
  union ibv_gid gid = {.raw = {0}};
  if (index > 1) return gid;
  gid.global.subnet_prefix = 0x80fe;
  gid.global.interface_id = ibv_get_device_guid(context->device) + (uint64_t)(index ^ FAKE_FLIP);
  return gid;
}

int ibv_query_gid(struct ibv_context* context, uint8_t port, int index, union ibv_gid* gid) {
  ENTER();
  if (port != 1 || index < 0 || index >= FAKE_GIDS) return -1;
  fake_tell("GID %d alone\n", index);
  *gid = gid_at(context, index);
  return 0;
}

int ibv_query_gid_type(struct ibv_context* context, uint8_t port, unsigned index, int* type);
int ibv_query_gid_type(struct ibv_context* context, uint8_t port, unsigned index, int* type) {
  ENTER();
  (void)context;
  *type = 0;
  return port == 1 && index < FAKE_GIDS ? 0 : -1;
}

/* As rdma-core has it, the answer is an attribute of a command, whose length has 16 bits. */
#if FAKE_EXTENDED
ssize_t _ibv_query_gid_table(struct ibv_context* context, struct ibv_gid_entry* entries, size_t capacity,
                             uint32_t flags, size_t bytes) {
  ENTER();
  if (flags != 0 || bytes != sizeof(*entries) || capacity < 2 || capacity * bytes > UINT16_MAX) return -EINVAL;
  for (uint32_t i = 0; i < 2; ++i) {
    entries[i] = (struct ibv_gid_entry){.gid_index = i, .port_num = 1, .gid_type = IBV_GID_TYPE_IB};
    entries[i].gid = gid_at(context, (int)i);
  }
  return 2;
}
#endif

/* The first is everybody's, the last is one that both have, and between them are others' and free places. */
uint16_t fake_pkey_at(int index) {
  if (index > 0 && fake_is_marked("unpartitioned")) return 0;
  return index == 0 ? 0xffff : index == FAKE_PARTITIONS - 1 ? 0x8001 : index == 1 ? 0x8002 : 0;
}

int ibv_query_pkey(struct ibv_context* context, uint8_t port, int index, __be16* pkey) {
  ENTER();
  (void)context;
  if (port != 1 || index < 0 || index >= FAKE_PARTITIONS) return -1;
  *pkey = htobe16(fake_pkey_at(index));
  return 0;
}

int ibv_get_async_event(struct ibv_context* context, struct ibv_async_event* event) {
  ENTER();
  return fake_pop_event(fake_async_events(context), context->async_fd, event);
}

void ibv_ack_async_event(struct ibv_async_event* event) {
  ENTER();
  (void)event;
}

#if FAKE_OLD_SYMBOLS
#define OLD(name)                                              \
  void* old_##name(void);                                      \
  __asm__(".symver old_" #name ", ibv_" #name "@IBVERBS_1.0"); \
  void* old_##name(void) {                                     \
    static const char text[] = "the old ibv_" #name "\n";      \
    (void)!write(2, text, sizeof(text) - 1);                   \
    abort();                                                   \
  }
OLD(get_device_list)
OLD(free_device_list)
OLD(open_device)
OLD(close_device)
OLD(query_port)
OLD(alloc_pd)
OLD(dereg_mr)
OLD(create_cq)
OLD(destroy_cq)
OLD(get_cq_event)
OLD(create_qp)
OLD(modify_qp)
OLD(query_qp)
OLD(destroy_qp)
#endif
