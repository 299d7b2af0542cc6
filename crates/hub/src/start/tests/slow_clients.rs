//! Clients that send slowly delay only themselves.

use tokio::io::AsyncWriteExt as _;

use super::*;

/// A request whose body never ends.
async fn trickle(client: &Client, path: &str, token: &str) -> TlsStream<TcpStream> {
    let mut stream = client.connect("127.0.0.1", &["http/1.1"]).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\nauthorization: Bearer {token}\r\n\
         content-length: 1000\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test]
async fn bodies_that_trickle_in_take_no_turn_from_agents_and_administrators() {
    let directory = tempfile::tempdir().unwrap();
    let few = Config {
        max_api_requests: 2,
        max_agent_requests: 2,
        ..config(directory.path())
    };
    let running = start(few).await.unwrap();
    let client = Client::of(&running);
    let post = async |path: &str, body: Value| {
        let request = client
            .request(Method::POST, path)
            .header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {}", client.token));
        client.send(request.body(Full::from(body.to_string())).unwrap()).await
    };
    // An account without any right.
    let accounts = "/api/v1/namespaces/farwater-admin/serviceaccounts";
    assert_eq!(post(accounts, json!({"metadata": {"name": "none"}})).await.code, 201);
    let token = post(&format!("{accounts}/none/token"), json!({"spec": {}}))
        .await
        .json();
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(trickle(&client, "/agent/v1/join", "").await);
        slow.push(trickle(&client, "/apis/authorization.k8s.io/v1/selfsubjectreviews", &token).await);
    }
    // If one of them were held until a body is complete, these would wait for ten seconds and be refused.
    for _ in 0..4 {
        assert_eq!(client.get("/api/v1/namespaces").await.code, 200);
        let refused = client
            .send(
                client
                    .request(Method::POST, "/agent/v1/join")
                    .body(Full::from("{}"))
                    .unwrap(),
            )
            .await;
        assert_eq!(refused.code, 400, "{:?}", refused.body);
    }
    drop(slow);
    running.stop().await;
}
