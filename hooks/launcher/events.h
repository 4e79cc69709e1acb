// Events of PMIx without a launcher to carry them. A rank tells the others through the exchange (board.h). In each of
// them the library's thread tells the program's handlers, as it does itself.
//
// Handlers registered while there was a launcher are the library's, which can call them alone. It tells of an event
// for this process alone (PMIX_RANGE_PROC_LOCAL) without asking anybody. The library would ask the launcher for new
// handlers, so these are kept here, and are told beside the library's. A handler that ends an event ends it for the
// handlers on its side.
#pragma once

#include <pmix.h>

#include <cstddef>

#include "hooks/launcher/answering.h"

namespace shadowib {

// Tells whom `range` means, this process included, and returns before anybody has heard. The program's info is
// copied. PMIX_ERR_COMM_FAILURE: it may be that nobody hears; PMIX_ERR_NOT_SUPPORTED, PMIX_ERR_NOMEM: the info cannot
// be told.
pmix_status_t tell_event(pmix_status_t status, const pmix_proc_t* source, pmix_data_range_t range,
                         const pmix_info_t* info, std::size_t ninfo);

// Not inside (hooks/threads/stop.h), as in all that follows: the program's code may run. Has the program told of the
// oldest event that it has not heard of. False: of none.
bool hear_event();

// A handler's number is none of the library's. PMIX_ERR_NOT_SUPPORTED: it is for events of some processes alone.
pmix_status_t add_event_handler(const pmix_status_t* codes, std::size_t ncodes, const pmix_info_t* info,
                                std::size_t ninfo, pmix_notification_fn_t handler, std::size_t* number);
// Whether a number is one of ours.
bool is_own_handler(std::size_t number);
void remove_event_handler(std::size_t number);
std::size_t new_handler_number();

}  // namespace shadowib
