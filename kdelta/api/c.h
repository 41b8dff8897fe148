/* The C interface of kdelta: operators on tensor views (kdelta/api/c_ops.h). C99 and C++; C++ has throwing forms in
 * kdelta/api/ops.h. */
#ifndef KDELTA_API_C_H_
#define KDELTA_API_C_H_

#include "kdelta/api/c_base.h"
#include "kdelta/api/c_ops.h"

#endif
