// A device's identity for the program: name, limits, ports and addresses as the program was told them at its last
// open before a restart, whatever adapter is behind it then. A device opened again later is the same device.
//
// Members agree on adapters by name, and compare link layers before they connect. So a process that looks for devices
// for the first time after a restart which has changed the adapter is told what its fellows were told before. (One
// that was started into the restarted job looks before it is a member: its device has the adapter's name, and is its
// fellows' otherwise.)
#pragma once

#include <memory>
#include <string>

#include "shadowib/base/status.h"
#include "shadowib/objects/context.h"

namespace shadowib {

// Asks the adapter that a context is on what it can do.
Status ask_limits(ShadowContext& context);
// Fills in attr, real_attr and ports of a context just opened on its device, at generations above 0 from the device's
// identity if it has one. The result is noted by keep_identity.
Status identify(ShadowContext& context);
// The context's addresses are settled: the device has them from now on. Under the registry's lock.
void keep_identity(ShadowContext& context);

// At the beginning of a process: notes what devices are called on this machine, for a program that looks for them
// only after a restart.
void note_names_here();
// The name of the device at that place at that time; empty: not known, as where there were several.
std::string name_at_the_beginning(int ordinal);

// After a restart: notes whether the adapter that a context is on, which has that name, is another than the program
// was told of. If the program does not have a device open, only its name is looked at.
void note_adapter(ShadowContext& context, const char* name);
void note_closed_devices(ibv_device** list, int count);
// After a restart: addresses of devices that the program does not have open stay its own.
Status claim_closed_devices();
// After a restart: tells others of this member's devices whose adapter is another now.
Status publish_identities();
// After a restart: the device that fellows know at that place. Null: none has told of one. Asks the exchange.
std::unique_ptr<ShadowDevice> device_of_fellows(int ordinal);

}  // namespace shadowib
