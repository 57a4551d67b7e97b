// Threads of the library's own beside those of the trainer.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace tidepool::inline v0_3_0::detail {

// Threads that are started while this object lives take no signals: those are for the trainer's.
class quiet {
 public:
  quiet() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  quiet(const quiet&) = delete;
  quiet& operator=(const quiet&) = delete;
  ~quiet() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace tidepool::detail
