#include "hooks/imager/save/restart_mailbox.h"

extern "C" {
shadowib::RestartMailbox shadowib_restart_mailbox;
}
