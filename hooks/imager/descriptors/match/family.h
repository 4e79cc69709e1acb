// A member's child processes: what a set may not lack.
#pragma once

#include "hooks/imager/descriptors/match/match.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Over all members. kRefused names a child that is no member (EAGAIN: it may have ended in a moment), or that is
// where its parent could not put it again; kCorrupt: tables that cannot be true of processes.
Status judge_families(const Tables& tables);

// The member whose child it is, null if none is.
const Table* parent_of(const Tables& tables, const Table& table);

}  // namespace shadowib::descriptors
