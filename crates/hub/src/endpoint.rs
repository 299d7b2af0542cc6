//! A path that is served. Routers are built from lists of these, so that the table of access can list every path.

use axum::{
    Router,
    handler::Handler,
    routing::{MethodRouter, any, get, post},
};

pub struct Endpoint<S> {
    /// `*`: the handler decides.
    pub method: &'static str,
    pub path: &'static str,
    handler: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Endpoint<S> {
    pub fn get<H: Handler<T, S>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self {
            method: "GET",
            path,
            handler: get(handler),
        }
    }

    pub fn post<H: Handler<T, S>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self {
            method: "POST",
            path,
            handler: post(handler),
        }
    }

    pub fn any<H: Handler<T, S>, T: 'static>(path: &'static str, handler: H) -> Self {
        Self {
            method: "*",
            path,
            handler: any(handler),
        }
    }

    pub fn map(self, change: impl FnOnce(MethodRouter<S>) -> MethodRouter<S>) -> Self {
        Self {
            handler: change(self.handler),
            ..self
        }
    }

    pub fn router(endpoints: Vec<Self>) -> Router<S> {
        endpoints.into_iter().fold(Router::new(), |router, endpoint| {
            router.route(endpoint.path, endpoint.handler)
        })
    }
}
