// Connections: what ids do when the program, a peer or the clock says something.
#pragma once

#include <rdma/rdma_user_cm.h>

#include "shadowib/base/status.h"
#include "shadowib/cm/connection_id.h"

namespace shadowib::cm {

// The program's requests; 0 or an errno. The id is in the channel's hands, manager().lock is held.
int listen(ConnectionId& id, std::uint32_t backlog);
int connect(ConnectionId& id, const rdma_ucm_conn_param& parameters);
int accept(ConnectionId& id, const rdma_ucm_conn_param& parameters, std::uint64_t uid);
int reject(ConnectionId& id, std::uint8_t reason, const std::uint8_t* data, std::uint8_t bytes);
int disconnect(ConnectionId& id);
// Data came before the peer's RTU (rdma_notify).
int establish(ConnectionId& id);

// Tells the peer, if there is one, that the id is going away, and stops listening. No event.
void end_connection(ConnectionId& id);

// After a restart: what this process has in the exchange, again. Connections to guests have ended.
Status publish_again();

}  // namespace shadowib::cm
