// What a device is to the program, for good: its name, limits, ports and addresses as the program was told them when
// it opened it first, whatever adapter a restart has behind it. What is opened again later is the same device.
//
// Members agree on adapters by name, and compare link layers before they connect. So a process that looks for devices
// for the first time after a restart which has changed the adapter is told what its fellows were told before.
#pragma once

#include <string>

#include "shadowib/base/status.h"
#include "shadowib/objects/context.h"

namespace shadowib {

// Fills in attr, real_attr and ports of a context just opened on its device, at generations above 0 from the device's
// identity if it has one. What it says is noted by keep_identity.
Status identify(ShadowContext& context);
// The context's addresses are settled: the device has them from now on. Under the registry's lock.
void keep_identity(ShadowContext& context);

// At the beginning of a process: notes what devices are called on this machine, for a program that looks for them
// only after a restart.
void note_names_here();
// What the device at that place was called then; empty: not known.
std::string name_at_the_beginning(int ordinal);

// After a restart: whether the adapter at `real`, with that name, is another than the program was told of.
void note_adapter(ShadowContext& context, const char* name);
// After a restart: tells others of this member's devices whose adapter is another now.
Status publish_identities();
// After a restart, of a process that knows no device at that place: the one that its fellows know there. Null: none
// has told of one. Asks the exchange; its owner is the caller.
ShadowDevice* device_of_fellows(int ordinal);

}  // namespace shadowib
