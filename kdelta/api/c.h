/* The C interface of kdelta: operators on tensor views (kdelta/api/c_ops.h) and models (kdelta/api/c_engine.h). C99 and
 * C++; C++ has throwing forms of the operators in kdelta/api/ops.h and models in kdelta/api/engine.h and service.h. */
#ifndef KDELTA_API_C_H_
#define KDELTA_API_C_H_

#include "kdelta/api/c_base.h"
#include "kdelta/api/c_engine.h"
#include "kdelta/api/c_ops.h"

#endif
