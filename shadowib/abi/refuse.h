// Refusals: what answers for verbs that are not shadowed. One warning per name in a process's life, never a
// pass-through (P4).
//
// Async-signal-safe as far as log_line is; may be called by any thread, also during a checkpoint.
#pragma once

namespace shadowib {

// Warns once, naming census entry `id` (verbs.def, in file order), at level warn.
void warn_refused(unsigned id);

// Number of distinct names refused so far, for status and tests.
unsigned refused_names();

}  // namespace shadowib

extern "C" {
// Reached by a jump from exports.S with the census id as only argument; each answers in its convention (verbs.def).
int shadowib_refuse_int(unsigned id);
void* shadowib_refuse_ptr(unsigned id);
int shadowib_refuse_minus1(unsigned id);
unsigned long long shadowib_refuse_zero(unsigned id);
void shadowib_refuse_void(unsigned id);
int shadowib_refuse_rereg(unsigned id);
int shadowib_census_noop(void);
}
