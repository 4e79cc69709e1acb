#include "storm/opcodes.h"

namespace storm {

ibv_wr_opcode opcode_of(Kind kind) {
  switch (kind) {
    case Kind::kSend:
      return IBV_WR_SEND;
    case Kind::kSendImm:
      return IBV_WR_SEND_WITH_IMM;
    case Kind::kSendInvalidate:
      return IBV_WR_SEND_WITH_INV;
    case Kind::kWriteImm:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Kind::kRead:
    case Kind::kMirrorRead:
      return IBV_WR_RDMA_READ;
    case Kind::kAdd:
    case Kind::kSharedAdd:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Kind::kSwap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    case Kind::kBind:
      return IBV_WR_BIND_MW;
    case Kind::kInvalidate:
      return IBV_WR_LOCAL_INV;
    default:
      return IBV_WR_RDMA_WRITE;
  }
}

ibv_wc_opcode completion_of(Kind kind) {
  switch (opcode_of(kind)) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_BIND_MW:
      return IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return IBV_WC_LOCAL_INV;
    default:
      return IBV_WC_SEND;
  }
}

}  // namespace storm
