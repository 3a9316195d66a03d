#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace convene {

ErrorKind KindOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return ErrorKind::kNotFound;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
      return ErrorKind::kResourceExhausted;
    case ENXIO:  // a FIFO that nobody reads
    case EPIPE:
      return ErrorKind::kUnavailable;
    case EIO:
      return ErrorKind::kDataLoss;
    default:
      return ErrorKind::kInvalidArgument;
  }
}

Error SystemError(std::string_view what, int error_number) {
  return Error{fmt::format("{}: {}", what, std::strerror(error_number)), KindOfErrno(error_number)};
}

}  // namespace convene
