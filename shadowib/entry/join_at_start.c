/* Preloaded behind libshadowib.so by `shadowib run --join-children`: every process joins the job when it is loaded,
 * also without an RDMA device. The loader runs this after all constructors of libshadowib.so, which this library
 * needs. */
#include "shadowib/include/shadowib/shadowib.h"

/* A process that cannot join is named by each checkpoint, as any that is no member. */
__attribute__((constructor)) static void join(void) { (void)shadowib_join(); }
